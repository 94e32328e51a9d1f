"""Counts the bytes of live tensor storages on some device types, without an allocator's help.

Used where no allocator keeps statistics (``cpu``). A storage counts once however many tensors
view it, from the operation that made it until Python's and autograd's last reference is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from pytest_vramfit.events import Action, Block, Event, block_bytes

_Living = weakref.KeyedRef[int, torch.UntypedStorage]


class CeilingReachedError(Exception):
    """More bytes came to life than the recorder was told to let live."""

    def __init__(self, live_bytes: int, ceiling_bytes: int) -> None:
        super().__init__(f"{live_bytes} bytes live, {ceiling_bytes} allowed")
        self.live_bytes = live_bytes
        self.ceiling_bytes = ceiling_bytes


class Recorder(TorchDispatchMode):
    """A dispatch mode that knows ``live_bytes`` now and ``peak_bytes`` since the last reset.

    Sizes are rounded up to blocks of 512 bytes. What existed before the mode was entered is
    counted when an operation first returns it, so enter it before anything is built.
    """

    def __init__(self, *device_types: str, ceiling_bytes: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_types = device_types
        self._ceiling_bytes = ceiling_bytes
        self._live: dict[int, tuple[_Living, int]] = {}
        """Storages and their bytes, by their keys."""
        self.live_bytes = 0
        self.peak_bytes = 0

    def reset_peak(self) -> None:
        """Start the peak anew from what is live now."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, then count the storages that it returned for the first time."""
        result = func(*args, **(kwargs or {}))
        self.count_all(result, func)
        return result

    def count_all(self, result: Any, made_by: object) -> None:
        """Count what an operation returned."""
        if isinstance(result, torch.Tensor):
            if result.device.type in self._device_types:
                self.count(result, made_by)
        elif result is not None:
            for value in tree_iter(result):
                if isinstance(value, torch.Tensor):
                    self.count_all(value, made_by)

    def count(self, tensor: torch.Tensor, made_by: object) -> None:
        """Count the tensor's storage from now on, if it is new; ``made_by``: the operation."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        size_bytes = block_bytes(storage.nbytes())
        if key in self._live or size_bytes == 0:
            return
        self._live[key] = weakref.KeyedRef(storage, self._gone, key), size_bytes
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.born(key, tensor, made_by)
        if self._ceiling_bytes is not None and self.live_bytes > self._ceiling_bytes:
            raise CeilingReachedError(self.live_bytes, self._ceiling_bytes)

    def born(self, key: int, tensor: torch.Tensor, made_by: object) -> None:
        """Called for each new storage; ``key`` is its own while it lives."""

    def gone(self, key: int) -> None:
        """Called when a storage's last reference is gone."""

    def _gone(self, storage: _Living) -> None:
        _, size_bytes = self._live.pop(storage.key)
        self.live_bytes -= size_bytes
        self.gone(storage.key)


class HasPhase(Protocol):
    """A training step."""

    phase: str


class Journal(Recorder):
    """A recorder that keeps every event in order, and what each block is."""

    def __init__(self, *device_types: str) -> None:
        super().__init__(*device_types)
        self.events: list[Event] = []
        self.blocks: list[Block] = []
        self._step: weakref.ref[HasPhase] | None = None
        self._block_of: dict[int, int] = {}
        """The block of each living storage."""

    def follow(self, step: HasPhase) -> None:
        """From now on blocks are of this step's phases; before, of loading."""
        # living storages keep the recorder: it must not keep those of the step
        self._step = weakref.ref(step)

    def phase(self) -> str:
        """What is going on."""
        step = self._step() if self._step is not None else None
        return "load" if step is None else step.phase

    def born(self, key: int, tensor: torch.Tensor, made_by: object) -> None:
        """Record an allocation."""
        size_bytes = tensor.untyped_storage().nbytes()
        self._block_of[key] = self.allocate(size_bytes, made_by, tuple(tensor.shape))

    def gone(self, key: int) -> None:
        """Record that a block was freed."""
        self.events.append((Action.FREE, self._block_of.pop(key), 0))

    def assign(self, part: str, tensors: Iterable[torch.Tensor]) -> None:
        """Say what living tensors are in the ledger, unless that was said before."""
        for tensor in tensors:
            number = self._block_of.get(tensor.untyped_storage()._cdata)
            if number is not None and self.blocks[number].part is None:
                self.blocks[number].part = part

    def assign_rest(self, part: str) -> None:
        """Say it of all that lives."""
        for number in self._block_of.values():
            self.blocks[number].part = self.blocks[number].part or part

    def allocate(self, size_bytes: int, made_by: object, shape: tuple[int, ...]) -> int:
        """Note an allocation; its number."""
        number = len(self.blocks)
        self.blocks.append(Block(made_by, shape, self.phase()))
        self.events.append((Action.ALLOCATE, number, size_bytes))
        return number
