"""How what others hold of a GPU changes while a case runs.

NVML says how much of the GPU is used, and PyTorch how much of that its allocator has. What is left
is this process's context and libraries, and others'. Where the driver tells processes apart, so
does this. Elsewhere this process is given the benefit of the doubt while it loads kernels and
libraries; nothing is loaded in the timed steps, so any change in them is others'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytest_vramfit.measurement import HeldChange
from pytest_vramfit.measuring.nvml import Card

NOISE_BYTES = 32 * 2**20
"""A smaller change is none."""
LOADED_BYTES = 512 * 2**20
"""What a case may load beside its allocator: 250 MiB were seen, on top of the context."""


class Gpu(Protocol):
    """As much of :class:`pytest_vramfit.measuring.nvml.Gpu` as is needed."""

    def card(self) -> Card:
        """What is used now."""

    def own_bytes(self) -> int | None:
        """What this process holds, if the driver tells."""


class Others:
    """Looks at the GPU at certain moments of a case."""

    def __init__(self, gpu: Gpu, reserved_bytes: Callable[[], int]) -> None:
        """``reserved_bytes``: what this process's allocator holds now."""
        self._gpu = gpu
        self._reserved_bytes = reserved_bytes
        self.managed = False
        """Whether the case has memory that the driver moves on and off the GPU."""
        self.begin()

    def begin(self) -> None:
        """A case begins: what others hold now is no change."""
        self._tells = self._gpu.own_bytes() is not None
        self._last = self._not_explained()
        self._sum = 0
        self.change: HeldChange | None = None
        """The largest of this case so far."""

    def look(self, when: str, *, loading: bool) -> None:
        """Take note of what changed since the last look.

        ``loading``: whether this process may have loaded kernels and libraries since then.
        """
        if self.managed and not self._tells:
            return
        now = self._not_explained()
        step = now - self._last
        if loading and not self._tells and step > 0:
            step = max(0, step - LOADED_BYTES)
        self._last = now
        self._sum += step
        largest = 0 if self.change is None else abs(self.change.bytes)
        if abs(self._sum) > max(NOISE_BYTES, largest):
            self.change = HeldChange(bytes=self._sum, when=when)

    @property
    def change_now_bytes(self) -> int:
        """How much more others held at the last look than at the beginning."""
        return self._sum if abs(self._sum) > NOISE_BYTES else 0

    def _not_explained(self) -> int:
        """What is used and neither this process's nor its allocator's, as far as is told."""
        own = self._gpu.own_bytes() if self._tells else None
        explained = self._reserved_bytes() if own is None else own
        return self._gpu.card().used_bytes - explained
