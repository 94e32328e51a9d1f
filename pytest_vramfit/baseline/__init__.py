"""Earlier measurements of the same tests, kept as reviewed JSON files in the user's repository."""

from pytest_vramfit.baseline.entry import ENOUGH_PROCESSES, BaselineError, Entry, Process
from pytest_vramfit.baseline.store import Match, Store

__all__ = ["ENOUGH_PROCESSES", "BaselineError", "Entry", "Match", "Process", "Store"]
