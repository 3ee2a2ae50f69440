"""Run a function of the benchmarks in a new process: see `harness.in_child`."""

from __future__ import annotations

import importlib
import json
import sys


def main(function: str, hiredis: str, arguments: str) -> None:
    if not json.loads(hiredis):
        # Importing hiredis fails from now on, as where it is not installed.
        sys.modules["hiredis"] = None
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
