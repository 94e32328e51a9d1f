"""What PyTorch chooses by the device of its tensors, chosen for the target instead."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from bitsandbytes.nn import Params4bit
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import masking_utils
from transformers.utils import generic

from pytest_vramfit.estimating import attention, autocast
from pytest_vramfit.estimating.autocast import Autocast
from pytest_vramfit.estimating.target import Target
from pytest_vramfit.estimating.trace import Trace


class Dispatch(TorchFunctionMode):
    """Stands between the training code and PyTorch's functions."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.autocast = Autocast(autocast.CPU if target.capability is None else autocast.CUDA)

        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
            return attention.scaled_dot_product_attention(target, *args, **kwargs)

        self._chosen: dict[Callable[..., Any], Callable[..., Any]] = {
            functional.scaled_dot_product_attention: scaled_dot_product_attention
        }
        self._casts: dict[Callable[..., Any], bool] = {}
        """Whether a function is cast or chosen at all, of those that were called."""
        if target.capability is not None:
            self._chosen |= {
                functional.dropout: dropout,
                functional.softmax: softmax,
                torch.softmax: softmax,
                torch.Tensor.softmax: softmax,
            }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call what the target would, under autocast where it is on."""
        cast = self._casts.get(func)
        if cast is None:
            cast = self._casts[func] = func in self._chosen or func.__name__ in self.autocast.lists
        if not cast:
            return func(*args, **(kwargs or {}))
        return self.autocast.call(self._chosen.get(func, func), args, dict(kwargs or {}))


def dropout(
    values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """CUDA's own kernel, with a mask of a byte an element (``at::dropout`` in Dropout.cpp)."""
    if not training or p == 0:
        return values
    result: torch.Tensor = torch.native_dropout(values, p, train=True)[0]
    return result


def softmax(values: torch.Tensor, dim: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    """CUDA's kernel makes float32 of float16 without a float32 copy of its input (``softmax`` in
    SoftMax.cpp).
    """
    dtypes = [one for one in (*args, kwargs.get("dtype")) if isinstance(one, torch.dtype)]
    result: torch.Tensor
    if values.dtype == torch.float16 and dtypes == [torch.float32]:
        result = torch._softmax(values, dim, half_to_float=True)
    else:
        result = torch.softmax(values, dim, *dtypes)
    return result


@contextmanager
def replaced(target: Target, dispatch: Dispatch, trace: Trace) -> Iterator[None]:
    """Within it, code that asks for the device's type, or for values that ``meta`` does not have,
    gets the target's answer.
    """
    kinds = ["meta"]
    answers: dict[str, Callable[..., Any]] = {
        # whether sequences are packed is read from positions; full batches are not
        "transformers.masking_utils.find_packed_sequence_indices": lambda _: None,
        # nor is a mask of padding that a model makes for itself, as OPT before 5.24, ever needed
        "transformers.masking_utils.fast_all": functools.partial(_all, masking_utils.fast_all),
        # PEFT turns it off around the parameters of experts
        "torch.autocast": functools.partial(_autocast, torch.autocast),
        # called by the end of the outermost autocast
        "torch.clear_autocast_cache": dispatch.autocast.forget,
        # clipping has foreach kernels on the CPU too, optimizers have only fused ones there
        "torch.utils._foreach_utils._get_foreach_kernels_supported_devices": lambda: kinds,
        "torch.optim.optimizer._get_fused_kernels_supported_devices": lambda: kinds,
        "bitsandbytes.nn.Params4bit.__deepcopy__": _copied,
        "bitsandbytes.functional.get_paged": functools.partial(_get_paged, trace),
        "bitsandbytes.functional.fill": lambda *_: None,
        "bitsandbytes.functional.prefetch_tensor": lambda *_: None,
    }
    if target.capability is not None:
        answers["torch.optim.optimizer._get_foreach_kernels_supported_devices"] = lambda: kinds
    # models turn autocast off around their rotary embedding, though not on meta
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and "maybe_autocast" in vars(module):
            answers[f"{name}.maybe_autocast"] = _maybe_autocast
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch(name, answer))
        yield


def _copied(weight: Params4bit, memo: dict[int, Any]) -> Params4bit:
    """A copy of a 4-bit weight, which DoRA makes: bitsandbytes begins with a tensor on the CPU, and
    its data cannot become those of one on ``meta``.
    """
    values = {**vars(weight), "quant_state": copy.deepcopy(weight.quant_state, memo)}
    return Params4bit(weight.data.clone(), requires_grad=weight.requires_grad, **values)


def _get_paged(trace: Trace, *shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A state in managed memory (bitsandbytes/functional.py)."""
    with trace.beside():
        state: Any = torch.empty(shape, dtype=dtype, device=device)
    state.is_paged = True
    paged: torch.Tensor = state
    return paged


def _all(original: Callable[[Any], object], mask: torch.Tensor) -> bool:
    """That every token counts, after what it takes to ask."""
    original(mask)
    return True


def _autocast(original: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's own; asked for ``meta``, for the device type that carries its state here."""
    return original("cpu" if device_type == "meta" else device_type, *args, **kwargs)


def _maybe_autocast(device_type: str, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
    """Transformers' own, for the device type that carries autocast's state here."""
    context: AbstractContextManager[Any] = generic.maybe_autocast("cpu", *args, **kwargs)
    return context
