"""The site: the pages of this directory, and a reference made from docstrings. `make docs`

The pages are written to be read on GitHub as well. `_read` makes of them what Sphinx needs: links
of the site, on which the changelog is a page, too; the tree of pages, from the tables of links on
the index pages; and docstrings, from the lists of names on the pages of the reference.

Our docstrings are plain text in which backticks mark code. `_docstring` makes reStructuredText of
that: what is in backticks is code, with a link where it is a public name of ours.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tomllib
from enum import Enum
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import django  # noqa: E402
from django.conf import settings  # noqa: E402
from django.dispatch import Signal  # noqa: E402
from pygments.lexers.special import TextLexer  # noqa: E402

import django_redislock  # noqa: E402

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_redislock"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"}},
)
django.setup()

from django_redislock.lease.lock import Lock  # noqa: E402
from django_redislock.locks.single_flight import Serializer  # noqa: E402

_project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _project["name"]
_source = _project["urls"]["Source"]
author = copyright = _project["authors"][0]["name"]
release = version = django_redislock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
templates_path = ["templates"]
html_theme = "furo"
html_title = project
html_static_path = ["images", "style"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "scorer.js")
# The theme's own sidebar, with the version and the repository below the name.
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "project.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {
    # The links above each page that show its source and edit it.
    "source_repository": _source,
    "source_branch": "main",
    "source_directory": "docs/",
    # On a phone the sidebar is closed, and this link is there all the same.
    "footer_icons": [{"name": "GitHub", "url": _source, "html": "GitHub", "class": ""}],
}
# A copy button takes what is typed: neither prompts nor what follows them.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False
# A block without a language is what a terminal shows, or a drawing.
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"
# What has no language named is what a terminal shows, or a drawing.
highlight_language = "text"
# A page's titles are linked as GitHub links them.
myst_heading_anchors = 4

# What overrides a method of Django's has its own docstring, or is as Django's is.
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
nitpick_ignore_regex = [
    # Types of others are named and not linked: a build needs no network.
    (r"py:.*", r"(?!django_redislock\b).*"),
    # Internal classes in the signatures of public ones.
    (r"py:class", r"django_redislock\.(settings\.policy\.Policy|primitives\.keys\.Keys)"),
    (r"py:class", r"django_redislock\.(transport\.cluster\.Cluster|lease\..*)"),
    (r"py:class", r"django_redislock\.testing\.condition\.Condition"),
    (r"py:class", r"django_redislock\.(commands\.Command|locks\.once\.Initialise)Options"),
    (r"py:class", r"django_redislock\.(inspection\.listing\.Part|tasks\.rules\.TaskEvent)"),
    # Type variables.
    (r"py:class", r"django_redislock\..*\.[A-Z]"),
]

CHANGELOG = ROOT / "CHANGELOG.md"
"""The text of the page `changelog`."""

PICTURE = re.compile(
    r'<picture>\s*<source media="[^"]+dark[^"]+" srcset="images/([^"]+)">\s*'
    r'<img alt="([^"]+)" src="images/([^"]+)">\s*</picture>'
)
"""A dark and a light picture, for which Markdown has no form."""

CHAPTER = re.compile(r"^\| ([^|]+) \| (\[.+\)) \|$", re.MULTILINE)
"""A row of an index page: a chapter, and links to its pages."""

NAMED = re.compile(r"(?:^- `[\w.]+`\n)+", re.MULTILINE)
"""A list of public names, on a page of the reference."""

PLAIN = {"django_redislock", "builtins", "typing"}
"""Where a class has bases of which its readers need not know."""

MODULES = (
    "django_redislock",
    "django_redislock.periodic",
    "django_redislock.views",
    "django_redislock.fencing",
    "django_redislock.leader",
    "django_redislock.inspection",
)
"""Whose public names are linked where a docstring has one of them in backticks."""


def _names() -> dict[str, str]:
    options = "LeaseOptions", "ServerOptions", "BlockOptions", "Options"
    names = {key: f"django_redislock.lease.lock.{key}" for key in options}
    for name in reversed(MODULES):
        module = import_module(name)
        public = getattr(module, "__all__", None) or [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == name and key[0] != "_"
        ]
        names |= {key: f"{name}.{key}" for key in public}
    return names


NAMES = _names()


def _docstring(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    """See above. What is indented is an example, unless it belongs to a list."""
    paragraphs = re.split(r"\n\n+", "\n".join(lines).rstrip())
    listed = False
    for number, paragraph in enumerate(paragraphs):
        listed = paragraph.startswith("* ") or (listed and paragraph.startswith("  "))
        if paragraph.startswith("    ") and not listed:
            paragraphs[number] = f".. code-block:: python\n\n{paragraph}"
        else:
            paragraphs[number] = _marked(paragraph)
    lines[:] = ("\n\n".join(paragraphs) + "\n").split("\n")


def _marked(text: str) -> str:
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([|_\\])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = [re.sub(r"docs/([\w-]+)\.md", r":doc:`/\1`", part) for part in parts[::2]]
    parts[1::2] = [_code(part.strip("`")) for part in parts[1::2]]
    return "".join(parts)


def _code(text: str) -> str:
    words = " ".join(text.split())
    if (target := NAMES.get(words.removesuffix("()"))) is not None:
        return rf"\ :py:obj:`{words} <{target}>`\ "
    return rf"\ ``{words}``\ "


def _skip(_app: Any, _what: str, _name: str, thing: Any, skip: bool, _options: Any) -> bool:
    """What wraps a method of Django's has that one's docstring."""
    return skip or not (getattr(thing, "__module__", None) or "django_redislock").startswith(
        # An annotation without a value, as a TypedDict has, is a thing of Sphinx.
        ("django_redislock", "builtins", "typing", "enum", "sphinx")
    )


def _tree(text: str) -> str:
    """The tree of pages, by the chapters of an index page."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {chapter}\n\n"
        + "\n".join(re.findall(r"\((/[\w/-]+)\.md\)", links))
        + "\n```\n"
        for chapter, links in CHAPTER.findall(text)
    )


def _directive(name: str) -> str:
    """What puts the docstring of a public name into the page."""
    thing = resolve_name(name)
    if isinstance(thing, ModuleType):
        return f".. automodule:: {name}"
    if isinstance(thing, Signal):
        return f".. autodata:: {name}\n   :no-value:"
    if not isinstance(thing, type):
        return f".. autofunction:: {name}"
    options = [":members:"]
    if _is_read(thing):
        name += "()"
        if not issubclass(thing, dict):  # each key of which has its docstring
            options += [":undoc-members:", ":exclude-members: count, index, parse"]
    elif Lock in thing.__bases__:
        options.append(":inherited-members: FunctionDecorator")
    elif {base.__module__.partition(".")[0] for base in thing.__mro__} - PLAIN:
        options.append(":show-inheritance:")
    return f".. autoclass:: {name}\n   " + "\n   ".join(options)


def _is_read(thing: type) -> bool:
    """Users read such things, and don't make them: their signatures say nothing."""
    return (
        dataclasses.is_dataclass(thing)
        or issubclass(thing, Enum | tuple | dict)
        or thing in (django_redislock.Lease, Serializer)
    )


def _documented(text: str) -> str:
    """A page of the reference: the names on it, with their docstrings."""
    title = re.match(r"# `(django_redislock\.(?!contrib)\w+)`", text)
    module = title[1] if title else "django_redislock"

    def directives(names: re.Match[str]) -> str:
        each = re.findall(r"`([\w.]+)`", names[0])
        full = [name if "." in name else f"{module}.{name}" for name in each]
        if title:
            full.insert(0, module)
        return "```{eval-rst}\n" + "\n\n".join(map(_directive, full)) + "\n```\n"

    return NAMED.sub(directives, text)


def _read(app: Any, page: str, source: list[str]) -> None:
    """Each link leads to where its file is on the site, or to the repository."""
    here = DOCS / page
    if page == "changelog":
        here = CHANGELOG
        app.env.note_dependency(str(here))
        source[0] = here.read_text(encoding="utf-8")

    def linked(link: re.Match[str]) -> str:
        text, path, anchor = link.groups(default="")
        target = (here.parent / path).resolve()
        if target.is_relative_to(DOCS):
            return f"[{text}](/{target.relative_to(DOCS)}{anchor})"
        if target == CHANGELOG:
            return f"[{text}](/changelog.md{anchor})"
        file = target.relative_to(ROOT)
        return f"[{text}]({_source}/blob/main/{file}{anchor})"

    text = re.sub(r"\[([^\]]*)\]\(([\w./-]+)(#[\w-]*)?\)", linked, source[0])
    if page in ("index", "reference/index"):
        text += _tree(text)
    elif page.startswith("reference/"):
        text = _documented(text)
    # GitHub's <picture> follows the system. The theme's two classes follow its own switch as well.
    source[0] = PICTURE.sub(
        r'<img class="only-dark" alt="\2" src="_static/\1" loading="lazy">'
        r'<img class="only-light" alt="\2" src="_static/\3" loading="lazy">',
        text,
    )
    source[0] = source[0].replace('src="images/', 'src="_static/')


def setup(app: Any) -> None:
    app.add_lexer("crontab", TextLexer)
    app.add_lexer("promql", TextLexer)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-skip-member", _skip)
    app.connect("source-read", _read)
