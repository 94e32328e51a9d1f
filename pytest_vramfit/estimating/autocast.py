"""Autocast, which PyTorch does not have for ``meta``: which operations it casts, and how.

The lists are those of aten/src/ATen/autocast_mode.h (CUDA) and autocast_mode.cpp (CPU), by the
names that Python has for the operations. Casts must stand above autograd, as autocast's do: below
it the graph would keep the tensors as they were before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOWER = _names(
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu addmm "
    "matmul __matmul__ __rmatmul__ einsum mm linear addbmm baddbmm bmm chain_matmul "
    "linalg_multi_dot linalg_vecdot scaled_dot_product_attention"
)
_FP32 = _names(
    "mse_loss nll_loss cross_entropy cosine_embedding_loss hinge_embedding_loss huber_loss "
    "margin_ranking_loss multilabel_margin_loss smooth_l1_loss soft_margin_loss "
    "triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits l1_loss "
    "poisson_nll_loss kl_div"
)


@dataclass(frozen=True, slots=True)
class Lists:
    """Operations by what autocast does to them."""

    lower: frozenset[str]
    """Run in the low precision."""
    fp32: frozenset[str]
    """Run in float32."""
    fp32_result: frozenset[str]
    """Are told to make float32 of a low precision, unless the caller says otherwise."""
    promote: frozenset[str]
    """Run in the widest type among their arguments."""

    def __contains__(self, name: str) -> bool:
        return any(name in one for one in (self.lower, self.fp32, self.fp32_result, self.promote))


CUDA = Lists(
    lower=_LOWER | _names("addmv addr mv"),
    fp32=_FP32
    | _names(
        "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow "
        "__pow__ __rpow__ square softplus layer_norm native_layer_norm rms_norm group_norm norm "
        "cosine_similarity dist pdist cdist renorm logsumexp"
    ),
    fp32_result=_names("prod softmax log_softmax cumprod cumsum linalg_vector_norm sum"),
    promote=_names(
        "addcdiv addcmul atan2 bilinear cross dot vdot grid_sample index_put tensordot scatter_add"
    ),
)
CPU = Lists(
    lower=_LOWER | {"tensordot"},
    fp32=_FP32 | {"prod"},
    fp32_result=frozenset(),
    promote=_names("stack cat index_copy"),
)

_WIDTHS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(slots=True)
class Autocast:
    """Autocast of the target.

    Whether it is on, and in which precision, is PyTorch's own state for the CPU, whose tensors the
    step has none of: so checkpoints that are recomputed and code that turns it off find it.
    """

    lists: Lists
    _cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Low-precision copies of trained float32 weights."""

    def forget(self) -> None:
        """Drop the copies: no autocast is on any more."""
        self._cache.clear()

    @property
    def dtype(self) -> torch.dtype | None:
        """The low precision; None while it is off."""
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the operation returns under autocast as it is now."""
        name, lists = function.__name__, self.lists
        low = self.dtype if name in lists else None
        if low is None:
            return function(*args, **kwargs)
        if name in lists.lower:
            return self._cast_call(low, function, args, kwargs)
        if name in lists.fp32:
            return self._cast_call(torch.float32, function, args, kwargs)
        first = args[0] if args else kwargs.get("input")
        told = any(isinstance(one, torch.dtype) for one in (*args, kwargs.get("dtype")))
        if name in lists.fp32_result and not told and _is_float(first):
            return function(*args, **{**kwargs, "dtype": torch.float32})
        if name in lists.promote:
            found = {one.dtype for one in _tensors((args, kwargs)) if _is_float(one)}
            widest = max(found, key=_WIDTHS.index, default=low)
            return self._cast_call(widest, function, args, kwargs)
        return function(*args, **kwargs)

    def _cast_call(
        self,
        dtype: torch.dtype,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        # from last to first, as C++ compilers evaluate arguments: the order of the casts is that of
        # their gradients
        named = {name: self._cast(kwargs[name], dtype) for name in reversed(kwargs)}
        cast = [self._cast(one, dtype) for one in reversed(args)]
        return function(*reversed(cast), **named)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        """The value with its tensors cast; ``cached_cast`` in autocast_mode.cpp."""
        if isinstance(value, list | tuple):
            return type(value)(self._cast(one, dtype) for one in value)
        if not _is_float(value) or value.dtype == dtype:
            return value
        trained = (
            dtype == self.dtype
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()  # noqa: SLF001
        )
        if not trained:
            return value.to(dtype)
        if id(value) not in self._cache:
            # the tensor is kept with its copy, so that its id stays its own
            self._cache[id(value)] = (value, value.to(dtype))
        return self._cache[id(value)][1]


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _WIDTHS


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
