"""Earlier measurements of the same tests, kept as reviewed JSON files in the user's repository."""

from pytest_vramfit.baseline.entry import BaselineError, Entry, Process
from pytest_vramfit.baseline.store import Match, Store

__all__ = ["BaselineError", "Entry", "Match", "Process", "Store"]
