"""Check the Lua scripts with luacheck: each file by itself, and each script as Redis gets it.

A file says in its head which names it takes from parts before it. In the whole script these names
have to be there: luacheck then knows none but those of Lua and Redis.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from django_redislock.primitives import scripts

LUA = Path(scripts.__file__).with_name("lua")
CONFIG = Path(__file__).parent.parent / ".luacheckrc"
UNUSED = ["--ignore", "211", "221", "231", "241", "331"]
"""A part defines names for the files after it, and not every script uses all of them."""
NAMES = ["--only", "1", "411"]
"""In a whole script, only names are of interest: those that no part has made, and those that are
made twice. Other mistakes have been found in the files."""
_FILES = {path.stem: path.read_text(encoding="utf-8") for path in LUA.glob("*.lua")}
PARTS = sorted(name for name, text in _FILES.items() if text.startswith("-- Part"))
SCRIPTS = [
    *sorted(_FILES.keys() - {*PARTS}),
    *(f"{name}{scripts.GUARDED}" for name in ("mutex_acquire", "record_acquire")),
]
DECLARED = re.compile("^-- luacheck:.*$", re.MULTILINE)


def luacheck(paths: Sequence[Path], *options: str) -> bool:
    command = ["luacheck", "--config", str(CONFIG), "--quiet", *map(str, paths), *options]
    return subprocess.run(command, check=False).returncode == 0


def main() -> int:
    if shutil.which("luacheck") is None:
        sys.stderr.write(
            "luacheck is missing, so the Lua scripts are not checked. On Debian and Ubuntu: "
            "apt-get install lua-check\n"
        )
        return int("REDISLOCK_REQUIRE_LUACHECK" in os.environ)
    files = sorted(LUA.glob("*.lua"))
    good = luacheck([path for path in files if path.stem not in PARTS])
    good &= luacheck([path for path in files if path.stem in PARTS], *UNUSED)
    with tempfile.TemporaryDirectory() as folder:
        whole = [Path(folder) / f"whole_{name}.lua" for name in SCRIPTS]
        for path, name in zip(whole, SCRIPTS, strict=True):
            path.write_text(DECLARED.sub("", scripts.load(name).source), encoding="utf-8")
        good &= luacheck(whole, *NAMES)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
