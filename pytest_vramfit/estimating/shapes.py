"""What operations return on ``meta``, remembered: layers repeat, and PyTorch's own inference of
shapes in Python takes most of a trace's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_iter

_Result = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of a new tensor."""
_MAKES_A_TENSOR_ANYWAY = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


class Shapes:
    """Calls operations, or makes what they returned when they last got the like."""

    def __init__(self) -> None:
        self._kept: dict[Any, list[_Result] | _Result] = {}
        self._pure: dict[Any, bool] = {}
        """Whether an operation returns new tensors and nothing else."""
        self._in_place: dict[Any, bool] = {}
        """Whether an operation changes values and nothing else."""
        self._harmless: set[Any] = set()
        """What such an operation got without a complaint."""

    def call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the operation returns: on ``meta``, a tensor of the right shape is all there is."""
        pure = self._pure.get(func)
        if pure is None:
            pure = self._pure[func] = _is_pure(func)
        if not pure:
            return self._call_in_place(func, args, kwargs)
        key = (func, _signature(args), _signature(kwargs) if kwargs else None)
        kept = self._kept.get(key)
        if kept is None:
            result = func(*args, **kwargs)
            seen = _described(result)
            if seen is not None:
                if _storages(result) & _storages((args, kwargs)):
                    self._pure[func] = False  # such as _unsafe_view, which does not say so
                else:
                    self._kept[key] = seen
            return result
        if isinstance(kept, list):
            return tuple(_made(one) for one in kept)
        return _made(kept)

    def _call_in_place(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What changes values only has nothing to do on ``meta`` but to refuse wrong shapes."""
        in_place = self._in_place.get(func)
        if in_place is None:
            in_place = self._in_place[func] = _changes_values_only(func)
        if not in_place or not all(one.is_meta for one in tree_iter(args[0])):
            return func(*args, **kwargs)
        key = (func, _signature(args), _signature(kwargs) if kwargs else None)
        if key not in self._harmless:
            func(*args, **kwargs)
            self._harmless.add(key)
        return args[0] if func._schema.returns else None


def _changes_values_only(func: Any) -> bool:
    """Of its first argument, or of a list of such, which it returns if anything."""
    namespace, _, name = func._schema.name.partition("::")
    first, returns = func._schema.arguments[0], func._schema.returns
    changed = [one.name for one in func._schema.arguments if one.alias_info]
    return (
        namespace == "aten"
        and name.endswith("_")
        and torch.Tag.inplace_view not in func.tags
        and changed == [first.name]
        and (not returns or str(returns[0].type) == str(first.type) == "Tensor")
    )


def _is_pure(func: Any) -> bool:
    schema = func._schema
    tensors = all(str(one.type) == "Tensor" and one.alias_info is None for one in schema.returns)
    makes_anyway = schema.name.partition("::")[2] in _MAKES_A_TENSOR_ANYWAY
    return tensors and bool(schema.returns) and not schema.is_mutable and not makes_anyway


def _signature(value: Any) -> Any:
    """All of an argument that a result's shape can depend on, to look it up by."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.is_meta
    if isinstance(value, tuple | list):
        return tuple([_signature(one) for one in value])
    if isinstance(value, dict):
        return tuple([(name, _signature(one)) for name, one in value.items()])
    # 1, 1.0 and True are equal, and give other dtypes
    return type(value), value


def _described(result: Any) -> list[_Result] | _Result | None:
    """The result to keep; None where it is not of new tensors on ``meta`` alone."""
    if isinstance(result, torch.Tensor):
        plain = result.is_meta and type(result) is torch.Tensor
        return (tuple(result.shape), result.stride(), result.dtype) if plain else None
    described = [_described(one) for one in result or ()]
    tuples = [one for one in described if isinstance(one, tuple)]
    return tuples if tuples and len(tuples) == len(described) else None


def _storages(value: Any) -> set[int]:
    """By these it is told whether a result is new: ``_unsafe_view`` does not say that it is not."""
    tensors = (one for one in tree_iter(value) if isinstance(one, torch.Tensor))
    return {one.untyped_storage()._cdata for one in tensors}


def _made(result: _Result) -> torch.Tensor:
    shape, strides, dtype = result
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
