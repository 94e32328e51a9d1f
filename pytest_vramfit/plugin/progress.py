"""What is being done, on the terminal's last line, while a case runs."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_vramfit.worker.protocol import Progress

_WORTH_SAYING_NS = 500_000_000


class ProgressLine:
    """Words behind what pytest wrote, gone when the case is done; only on a terminal."""

    def __init__(self, config: pytest.Config, after: str = "") -> None:
        """``after``: what else is to come."""
        self._after = after
        reporter = config.pluginmanager.getplugin("terminalreporter")
        self._shown = reporter is not None and reporter.isatty and reporter.hasmarkup
        self._capture = config.pluginmanager.getplugin("capturemanager")

    def show(self, progress: Progress) -> None:
        """Say which stage the case is in, and how long it and the cases after it will take."""
        step = f" {progress.done + 1}/{progress.of}" if progress.of > 1 else ""
        step += f", which {progress.holder} holds" if progress.holder else ""
        left = progress.left_ns or 0
        remaining = f", {left / 1e9:.0f} s left" if left >= _WORTH_SAYING_NS else ""
        self._write(f" [{progress.stage}{step}{remaining}{self._after}]")

    def clear(self) -> None:
        """Leave the line as it was."""
        self._write("")

    def _write(self, text: str) -> None:
        if not self._shown:
            return
        suspended = (
            self._capture.global_and_fixture_disabled()
            if self._capture is not None
            else contextlib.nullcontext()
        )
        with suspended:
            # save the cursor, do not wrap at the margin, write, clear the rest, and back; not by
            # pytest's own writer, which would take the words for a part of its line
            sys.stdout.write(f"\x1b7\x1b[?7l{text}\x1b[K\x1b[?7h\x1b8")
            sys.stdout.flush()
