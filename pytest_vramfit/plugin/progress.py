"""What is being done, on the terminal's last line, while a case runs."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vramfit.measuring.protocol import Progress

_WIDTH = 40


class ProgressLine:
    """A line that overwrites itself and is gone when the case is done; only on a terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._capture = config.pluginmanager.getplugin("capturemanager")
        reporter = config.pluginmanager.getplugin("terminalreporter")
        self._reporter = reporter if reporter is not None and reporter.isatty else None

    def show(self, progress: Progress) -> None:
        """Say which stage the case is in."""
        step = f" {progress.done + 1}/{progress.of}" if progress.of > 1 else ""
        self._write(f" [{progress.stage}{step}]")

    def clear(self) -> None:
        """Leave the line as it was."""
        self._write("")

    def _write(self, text: str) -> None:
        if self._reporter is None:
            return
        suspended = (
            self._capture.global_and_fixture_disabled()
            if self._capture is not None
            else contextlib.nullcontext()
        )
        # save the cursor, write over what was there, and go back to where pytest left it
        with suspended:
            self._reporter.write(f"\x1b7{text:<{_WIDTH}}\x1b8", flush=True)
