"""Counts the bytes of live tensor storages on some device types, without an allocator's help.

Used where no allocator keeps statistics (``cpu``). A storage counts once however many tensors
view it, from the operation that made it until Python's and autograd's last reference is gone.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

BLOCK_BYTES = 512
"""The CUDA caching allocator's smallest block (kMinBlockSize in c10/core/AllocatorConfig.h)."""


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
        self._live: set[int] = set()
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
        for value in (result,) if isinstance(result, torch.Tensor) else tree_iter(result):
            if isinstance(value, torch.Tensor) and value.device.type in self._device_types:
                self.count(value, made_by)

    def count(self, tensor: torch.Tensor, made_by: object) -> None:
        """Count the tensor's storage from now on, if it is new; ``made_by``: the operation."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        size_bytes = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        if key in self._live or size_bytes == 0:
            return
        self._live.add(key)
        weakref.finalize(storage, self._gone, key, size_bytes)
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.born(key, tensor, made_by)
        if self._ceiling_bytes is not None and self.live_bytes > self._ceiling_bytes:
            raise CeilingReachedError(self.live_bytes, self._ceiling_bytes)

    def born(self, key: int, tensor: torch.Tensor, made_by: object) -> None:
        """Called for each new storage; ``key`` is its own while it lives."""

    def gone(self, key: int) -> None:
        """Called when a storage's last reference is gone."""

    def _gone(self, key: int, size_bytes: int) -> None:
        self._live.discard(key)
        self.live_bytes -= size_bytes
        self.gone(key)
