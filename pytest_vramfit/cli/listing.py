"""A plugin for the pytest that `collected` runs: it writes a file of all that is collected.

Loaded by ``-p``, as text on the terminal depends on settings and other plugins. It needs nothing of
pytest but its hooks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OPTION = "--vramfit-listing"


def pytest_addoption(parser: Any) -> None:
    """Where the file is to be written."""
    parser.addoption(OPTION, type=Path, required=True)


def pytest_configure(config: Any) -> None:
    """Watch this session."""
    config.pluginmanager.register(_Listing(config))


class _Listing:
    def __init__(self, config: Any) -> None:
        self._config = config
        self._nodeids: list[str] = []

    def pytest_itemcollected(self, item: Any) -> None:
        """Before anything is deselected."""
        self._nodeids.append(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        config = self._config
        listing = {
            "rootdir": str(config.rootpath),
            "arguments": [str(one) for one in config.args],
            "last_failed": bool(config.getoption("lf", default=False)),
            "nodeids": self._nodeids,
        }
        config.getoption(OPTION).write_text(json.dumps(listing), encoding="utf-8")
