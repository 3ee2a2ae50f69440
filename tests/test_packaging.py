"""The package that is built has what it needs and nothing else, and works where it is installed.

It is built by what the dependency group `test` brings, so nothing is fetched. `REDISLOCK_DIST`
names a directory of packages that are built already: what is published is what was tested.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import django_redislock
from devtools.redis_server import RedisServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGES = "django_redislock", "django_redislock_pytest"
SUFFIXES = {".py", ".lua", ".html", ".css", ".js", ".json", ".yml", ".po", ".mo", ".typed", ".sh"}

NEEDED = {"django", "django-redis", "redis"}
"""What it asks for."""
THEIRS = {"asgiref", "sqlparse", "typing-extensions", "async-timeout", "pyjwt", "tzdata"}
"""What these ask for, some of it on some Pythons and systems only."""


class Dist(NamedTuple):
    wheel: Path
    sdist: Path

    def files(self) -> list[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("info/METADATA")]
            return message_from_string(archive.read(name).decode())


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    folder = Path(os.environ.get("REDISLOCK_DIST") or tmp_path_factory.mktemp("dist"))
    if not os.environ.get("REDISLOCK_DIST"):
        # The wheel is built from the sdist, so that one is whole.
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Dist(wheel.resolve(), sdist.resolve())


def run(*command: str, cwd: Path = ROOT, **env: str) -> str:
    """Without what may lead to the sources of the clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        command, cwd=cwd, env=kept | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked() -> set[str]:
    """The files of the packages that are no rubbish of an interpreter."""
    return {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel(dist: Dist) -> None:
    """The package, all of it, and nothing else; no tests, no tools."""
    files = dist.files()
    ours = {name for name in files if ".dist-info/" not in name}
    assert ours == tracked()
    there = {Path(name).suffix for name in ours}
    assert there == SUFFIXES
    assert "django_redislock/py.typed" in ours
    assert any(name.endswith("licenses/LICENSE") for name in files)


def test_the_sdist(dist: Dist) -> None:
    """What the wheel is built from."""
    with tarfile.open(dist.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    others = {name for name in names if name.partition("/")[0] not in PACKAGES}
    assert names - others == tracked()
    assert others - {".gitignore"} == {
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
    }


def test_what_it_pulls_in(dist: Dist) -> None:
    """Django and django-redis, and what those pull in; redis-py is one of these anyway."""
    asked = [Requirement(text) for text in dist.metadata().get_all("Requires-Dist", [])]
    direct = {
        canonicalize_name(one.name)
        for one in asked
        if one.marker is None or one.marker.evaluate({"extra": ""})
    }
    assert direct == NEEDED
    assert closure(direct) <= NEEDED | THEIRS
    assert "redis" in closure({"django-redis"})


def closure(names: set[str]) -> set[str]:
    """These packages, and all that they ask for here."""
    found: set[str] = set()
    missing = list(names)
    while missing:
        name = missing.pop()
        if name not in found:
            found.add(name)
            for text in distribution(name).requires or []:
                asked = Requirement(text)
                if asked.marker is None or asked.marker.evaluate({"extra": ""}):
                    missing.append(canonicalize_name(asked.name))
    return found


EXTRAS = {"opentelemetry", "periodic", "prometheus", "server", "testing"}


def test_the_extras_are_those_for_users(dist: Dist) -> None:
    """Each of them is in the table of docs/versions.md. What only developers need has none."""
    assert set(dist.metadata().get_all("Provides-Extra", [])) == EXTRAS
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    table = page.partition("django-redislock[…]")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == EXTRAS


def test_it_is_built_the_same_again(dist: Dist, tmp_path: Path) -> None:
    """The bytes depend on the sources and on SOURCE_DATE_EPOCH, and on no clock, user or place."""
    found = []
    for place, mode in (("one", 0o755), ("two/elsewhere", 0o700)):
        with tarfile.open(dist.sdist) as archive:
            archive.extractall(tmp_path / place, filter="data")
        (source,) = (tmp_path / place).iterdir()
        for path in source.rglob("*"):
            path.chmod(mode if path.is_dir() else mode & 0o666)
            os.utime(path, (1_600_000_000 + mode,) * 2)
        built = tmp_path / place / "dist"
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built)]
        run(*command, str(source), SOURCE_DATE_EPOCH="1700000000")
        found.append({path.name: path.read_bytes() for path in built.iterdir()})
        with tarfile.open(built / dist.sdist.name) as archive:
            assert {member.mtime for member in archive} == {1700000000}
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_what_pypi_shows(dist: Dist) -> None:
    """Its links lead somewhere from there as well, and the versions are those that are tested."""
    metadata = dist.metadata()
    assert metadata["Version"] == django_redislock.__version__
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert "](docs/" not in text
    assert '="docs/' not in text
    assert "](https://github.com/django-redislock/django-redislock/blob/main/docs/" in text
    classifiers = metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert "Framework :: Django :: 5.2" in classifiers
    assert "Programming Language :: Python :: 3.14" in classifiers
    urls = [url.partition(",")[0] for url in metadata.get_all("Project-URL", [])]
    assert {"Changelog", "Documentation", "Issues", "Source"} <= set(urls)


SETTINGS = """
INSTALLED_APPS += ["django_redislock"]
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": %r},
}
REDISLOCK = {"PREFIX": "redislock-packaging"}
STATIC_ROOT = "collected"
ALLOWED_HOSTS = ["testserver"]
"""

TRY = """
from django.contrib.auth.models import User
from django.test import Client
from django.utils.translation import override

from django_redislock import Semaphore, redis_lock

with redis_lock("invoice:42") as lease, Semaphore("exports", 3):
    assert lease.fencing_token
    User.objects.create_superuser("anna", password="anna")
    client = Client()
    client.login(username="anna", password="anna")
    with override("zh-hans"):
        page = client.get("/admin/django_redislock/lockstatus/").content.decode()
    assert "invoice:42" in page.replace("<wbr>", ""), page
    assert "持有者" in page, page

import sys

import django_redislock

print(django_redislock.__file__)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def python(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A new environment in which the wheel is installed, with what it asks for and no more."""
    return environment(dist, tmp_path_factory.mktemp("environment"), NEEDED)


def environment(dist: Dist, folder: Path, packages: set[str]) -> str:
    """Make an environment with the wheel and these packages, and return its interpreter.

    The packages are linked from here instead of fetched: it is the same without a network.
    """
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    interpreter = str(folder / "bin" / "python")
    site = Path(run(interpreter, "-c", "import site; print(site.getsitepackages()[0])").strip())
    for name in closure(packages):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or [] if ".." not in file.parts}:
            if top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))
    with zipfile.ZipFile(dist.wheel) as archive:
        archive.extractall(site)  # a wheel without scripts and data is installed by that
    return interpreter


def test_an_empty_project(python: str, redis_server: RedisServer, tmp_path: Path) -> None:
    """Locks, the command, the checks and the admin work there, translations and all."""
    run(python, "-m", "django", "startproject", "empty", ".", cwd=tmp_path)
    with (tmp_path / "empty" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS % redis_server.url)

    def manage(*words: str) -> str:
        return run(python, "manage.py", *words, cwd=tmp_path)

    manage("check", "--fail-level", "ERROR")
    manage("migrate", "--verbosity", "0")
    place, modules = manage("shell", "--verbosity", "0", "-c", TRY).splitlines()[-2:]
    assert place.startswith(str(Path(python).parent.parent))
    # Nothing that only the tests have, and no extra, is imported by chance.
    extras = {"cronsim", "opentelemetry", "prometheus_client", "pytest", "rest_framework"}
    assert not extras & set(modules.split())
    manage("collectstatic", "--no-input", "--verbosity", "0")
    assert (tmp_path / "collected" / "django_redislock" / "locks.js").is_file()
    assert manage("redislock", "list", "--json").strip()
    assert "ok" in manage("redislock", "run", "backup", "--", shutil.which("echo") or "", "ok")


BUSY_IN_A_ZIP = """
import sys

sys.path.insert(0, sys.argv[1])

import django
from django.conf import settings

settings.configure(ALLOWED_HOSTS=["*"])
django.setup()

from django.http import HttpResponse
from django.test import RequestFactory

from django_redislock.testing import locks_always_busy
from django_redislock.views import lock_view, responses

assert responses.__file__.startswith(sys.argv[1])
with locks_always_busy():
    request = RequestFactory().post("/", headers={"accept": "text/html"})
    answer = lock_view("buy")(lambda request: HttpResponse())(request)
print(answer.status_code, answer.content.decode())
"""


def test_in_a_zip(dist: Dist) -> None:
    """Python can import the package from the wheel itself, which is a zip, and a busy view has its
    page there."""
    said = run(sys.executable, "-c", BUSY_IN_A_ZIP, str(dist.wheel))
    assert said.startswith("409 <!doctype html>")
    assert "<h1>Conflict</h1>" in said


OF_A_PROJECT = """
from threading import Thread

import pytest

from django_redislock import LockNotAcquired, redis_lock
from django_redislock.testing import locks_always_busy


@locks_always_busy("invoice:42")
def test_busy():
    with pytest.raises(LockNotAcquired), redis_lock("invoice:42"):
        pass


def test_in_memory(redis_locks):
    with redis_lock("invoice:42", wait=0):
        got = []
        other = Thread(target=lambda: got.append(redis_lock("invoice:42", wait=0).acquire()))
        other.start()
        other.join()
        redis_locks.advance(20)
    assert got == [None]
"""


def test_the_pytest_plugin(dist: Dist, tmp_path: Path) -> None:
    """Pytest finds it in the wheel, and a project's tests need no Redis."""
    packages = {*NEEDED, "fakeredis", "lupa", "pytest", "pytest-django"}
    python = environment(dist, tmp_path / "environment", packages)
    project = tmp_path / "project"
    project.mkdir()
    run(python, "-m", "django", "startproject", "empty", ".", cwd=project)
    with (project / "empty" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS % "redis://nowhere.invalid")
    (project / "test_invoices.py").write_text(OF_A_PROJECT, encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = empty.settings\n")
    out = run(python, "-m", "pytest", "-q", "-W", "error", cwd=project)
    assert "2 passed" in out
