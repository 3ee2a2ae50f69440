"""The site: the pages of this directory, and a reference made from docstrings. `make docs`

The pages are written to be read on GitHub as well, and so are their links. `_read` turns those
into links of the site, on which the changelog is a page, too.

Our docstrings are plain text in which backticks mark code. `_docstring` makes reStructuredText of
that: what is in backticks is code, with a link where it is a public name of ours.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import django  # noqa: E402
from django.conf import settings  # noqa: E402
from pygments.lexers.special import TextLexer  # noqa: E402

import django_redislock  # noqa: E402

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_redislock"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"}},
)
django.setup()

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
    (r"py:class", r"django_redislock\.inspection\.listing\.Part"),
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

MODULES = (
    "django_redislock",
    "django_redislock.periodic",
    "django_redislock.views",
    "django_redislock.fencing",
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
