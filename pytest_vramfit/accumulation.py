"""Where autograd adds up gradients in place, which it does not while a dispatch mode is there.

Two paths that end in one tensor each bring a gradient. Autograd adds the second to the first in
place where nobody else has that one (``accumulate`` in torch/csrc/autograd/input_buffer.cpp), but
takes every tensor for one of a subclass while a mode is active, and then makes a new one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_add = torch.ops.aten.add.Tensor
Owners = tuple[int, int]
"""References to a tensor and to its storage."""


def is_in_place(func: Any, args: tuple[Any, ...], sole: Owners) -> bool:
    """Whether the operation, called by autograd's engine, would add to its first argument.

    ``sole``: what :func:`sole_owners` says.
    """
    if func is not _add or torch.is_grad_enabled():
        return False
    first, second = args[:2]
    return (
        isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and first.dtype == second.dtype
        and first.numel() * first.itemsize == first.untyped_storage().nbytes()
        and _owners(first) == sole
    )


def _owners(tensor: Any) -> Owners:
    storage = tensor.untyped_storage()._cdata
    return tensor._use_count(), torch._C._storage_Use_Count(storage)


@cache
def sole_owners() -> Owners:
    """The references to a gradient that nobody but the engine has: seen in a sum of two, as they
    depend on PyTorch's version.
    """
    seen: list[Owners] = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if func is _add:
                seen.append(_owners(args[0]))
            return func(*args, **(kwargs or {}))

    values = torch.ones(2, device="meta", requires_grad=True)
    middle = values * 2
    sums = torch.stack((middle.sin(), middle.cos()))
    with Look():  # type: ignore[no-untyped-call]
        sums.backward(torch.ones_like(sums))
    return seen[0]
