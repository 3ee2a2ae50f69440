#!/usr/bin/env python
"""Django's command line for the example shop."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # The demo borrows devtools/ from the repository around it. First on the path, since PyPI has
    # a package of that name, too.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
