"""The memory events of a step, recorded on ``meta``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from pytest_vramfit.accumulation import is_in_place, sole_owners
from pytest_vramfit.estimating.shapes import Shapes
from pytest_vramfit.estimating.target import Workspaces
from pytest_vramfit.events import Action
from pytest_vramfit.recorder import Journal

Lowering = Callable[..., Any]
"""Makes what an operation returns, and allocates on the way what the target's kernel would."""


_SHAPES = Shapes()
"""Of all traces of the process: the next case often has the same ones."""
_AUTOGRAD, _MAIN = "autograd", "main"


class Trace(Journal):
    """The journal of a step on ``meta``, as the target would have it.

    ``lowerings`` are the operations that allocate more, or in another order, than ``meta`` shows.
    Also the step's meter, whose questions become marks.
    """

    def __init__(
        self, lowerings: Mapping[object, Lowering], workspaces: Workspaces | None = None
    ) -> None:
        # on a CPU what lives beside the step's device lives on it: counters of optimizers
        super().__init__("meta", *(() if workspaces else ("cpu",)))
        self.marks: list[str] = []
        self._lowerings = lowerings
        self._sole = sole_owners()
        self._workspaces = workspaces
        self._thread = _MAIN
        self._has_workspace: set[tuple[str, str]] = set()
        self._elsewhere: set[int] = set()
        """Living storages in memory that the allocator does not have."""
        self._counts = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, or its lowering, and record what it allocates."""
        lowering = self._lowerings.get(func)
        if lowering is None:
            with torch._C.DisableTorchFunction():  # the target's choices were made above
                if self._accumulates(func, args):
                    return args[0]
                result = _SHAPES.call(func, args, kwargs or {})
                self.count_all(result, func)
        else:
            result = self._lowered(lowering, args, kwargs or {})
        if self._workspaces is not None and func in _PRODUCTS:
            self._use_cublas(has_bias=_has_bias(func, args))
        return result

    def _accumulates(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Not on a CPU, whose engine measures under a mode, too."""
        on_cuda = self._workspaces is not None
        return on_cuda and self._thread == _AUTOGRAD and is_in_place(func, args, self._sole)

    def _lowered(self, lowering: Lowering, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the lowering returns; what else it allocates is the kernel's workspace."""
        before = len(self.blocks)
        with self:
            result = lowering(*args, **kwargs)
        returned = {
            self._block_of.get(one.untyped_storage()._cdata)
            for one in tree_iter(result)
            if isinstance(one, torch.Tensor)
        }
        for number in range(before, len(self.blocks)):
            if number not in returned:
                self.blocks[number].part = "workspace"
        return result

    def count(self, tensor: torch.Tensor, made_by: object) -> None:
        """Count the tensor's storage from now on, if it is new and the allocator's."""
        storage = tensor.untyped_storage()
        if not self._counts and storage._cdata not in self._elsewhere:
            self._elsewhere.add(storage._cdata)
            weakref.finalize(storage, self._elsewhere.discard, storage._cdata)
        if storage._cdata not in self._elsewhere:
            super().count(tensor, made_by)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Within it, what is made is in memory that the allocator does not have."""
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    def reset_peak(self) -> None:
        """As a meter: here a phase begins."""
        super().reset_peak()
        self.mark(f"{self.phase()} begins")

    def peak_allocated_bytes(self) -> int:
        """As a meter: here it ends. The bytes are those of storages, without an allocator's."""
        self.mark(f"{self.phase()} ends")
        return self.peak_bytes

    def mark(self, name: str) -> None:
        """Note a moment."""
        self.events.append((Action.MARK, len(self.marks), 0))
        self.marks.append(name)

    def empty_cache(self) -> None:
        """Note that the allocator's cache is given back."""
        self.events.append((Action.EMPTY_CACHE, 0, 0))

    @contextmanager
    def in_autograd(self) -> Iterator[None]:
        """Within it operations run in autograd's thread of the device."""
        self._thread = _AUTOGRAD
        try:
            yield
        finally:
            self._thread = _MAIN

    def _use_cublas(self, *, has_bias: bool) -> None:
        """A thread's first product allocates cuBLAS's workspace, its first one with a bias that of
        cublasLt; both stay (aten/src/ATen/cuda/CublasHandlePool.cpp: one for each handle and
        stream, and handles are each thread's own).
        """
        assert self._workspaces is not None
        self._keep_workspace("cublas", self._workspaces.cublas_bytes)
        lt_bytes = self._workspaces.cublas_lt_bytes
        if has_bias and self._workspaces.lt_for_each_call:
            number = self._allocate_workspace("cublas_lt", lt_bytes)
            self.events.append((Action.FREE, number, 0))
        elif has_bias:
            self._keep_workspace("cublas_lt", lt_bytes)

    def _keep_workspace(self, name: str, size_bytes: int) -> None:
        """Allocate it where the thread does not have it."""
        if (self._thread, name) not in self._has_workspace:
            self._has_workspace.add((self._thread, name))
            self._allocate_workspace(name, size_bytes)

    def _allocate_workspace(self, name: str, size_bytes: int) -> int:
        number = self.allocate(size_bytes, name, (size_bytes,))
        self.blocks[number].part = "workspace"
        return number


_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.linear.default,
}


def _has_bias(func: object, args: tuple[Any, ...]) -> bool:
    if func is torch.ops.aten.linear.default:
        return len(args) > _BIAS and args[_BIAS] is not None
    return func is torch.ops.aten.addmm.default


_BIAS = 2
