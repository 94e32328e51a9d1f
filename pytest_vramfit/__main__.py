"""``python -m pytest_vramfit``."""

from __future__ import annotations

import sys

from pytest_vramfit.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
