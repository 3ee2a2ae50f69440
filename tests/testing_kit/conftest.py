"""Projects of others, in which pytest runs as they would run it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

SETTINGS = """
import os
SECRET_KEY = "not a secret"
USE_TZ = True
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
if url := os.environ.get("REAL_REDIS"):
    CACHES["default"] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest in a project with a line for its ini-file, and what stands in some files.

    The plugin is found by its entry point, that of pyproject.toml, also where the installed
    package has none yet.
    """
    installed = pytester.path / "installed"
    points = PYPROJECT["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {module}" for name, module in points.items()]
    info = installed / "redislock_plugin-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: redislock-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{ROOT}:{pytester.path}")
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)

    def run(*options: str, files: dict[str, str], ini: str = "") -> pytest.RunResult:
        project = {"shop/__init__.py": "", "shop/settings.py": SETTINGS, **files}
        project.setdefault(
            "pytest.ini", f"[pytest]\nDJANGO_SETTINGS_MODULE = shop.settings\n{ini}"
        )
        for name, text in project.items():
            path = pytester.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=120)

    return run
