"""Where the memory of training goes, by arithmetic on config values: no torch, no trace.

The closed forms of ZeRO (arXiv 1910.02054, section 3), LoRA (2106.09685, section 4) and QLoRA
(2305.14314, section 3), for what :mod:`pytest_vramfit.training` trains. Bytes are those of the
tensors themselves, which an allocator rounds up to 512 each, and of parameters only: the buffers of
a model (rotary frequencies) are some kilobytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple

from pytest_vramfit.estimating.transformer import (
    Module,
    NoClosedFormError,
    Transformer,
    transformer,
)
from pytest_vramfit.spec import Dtype, TrainSpec

ITEMSIZE: Mapping[Dtype, int] = {"bf16": 2, "fp16": 2, "fp32": 4}
LOSS_BYTES = 12
"""A logit when backward is at the log-softmax: its result, the gradient that comes in and the one
that goes out, all in fp32, to which transformers' ``ForCausalLMLoss`` casts the logits first.

Who keeps the model's output has the head's logits too: 2 bytes more where they are in half
precision, 4 in fp32, so 14 and 16. The training step keeps nothing of it but the loss.
"""
LEAST_PAGED = 100_000
"""Elements of a tensor whose states a paged optimizer pages; others stay on the device
(``get_state_buffer`` of bitsandbytes).
"""
LEAST_IN_8_BIT = 4096
"""Elements of a tensor whose states an 8-bit optimizer keeps in 8 bit; others stay in fp32
(``min_8bit_size`` of bitsandbytes).
"""
_WEIGHTS_BLOCK, _NESTED_BLOCK, _STATES_BLOCK = 64, 256, 256
"""Elements that share a constant in bitsandbytes: of a 4-bit matrix, of its constants under double
quantisation, of an 8-bit optimizer state.
"""
_LEVELS, _MAP = 16 * 4, 256 * 4
"""Tables in fp32: the values of a 4-bit code and of an 8-bit one."""


class Tensor(NamedTuple):
    """A tensor that is trained: its shape, and the bytes of an element."""

    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Bytes by part under the names of the results file's ledger, each part at its largest.

    They do not all live at one moment. When backward is at the loss, everything but ``gradients``
    does, and those too if an earlier micro-batch left them; at the optimizer's step, everything but
    ``activations`` and ``logits``. Where attention is eager and sequences are long, the peak may be
    a third one, inside a layer. The part ``workspace`` is the device's and has no closed form.
    """

    weights: int
    """Of the base, quantised or not, as the first step finds it. In that, bitsandbytes casts the
    biases of 4-bit matrices to the precision of the arithmetic.
    """
    quantisation: int
    """Constants and tables of a quantised base."""
    adapters: int
    """And the trained copies of ``modules_to_save``."""
    gradients: int
    optimizer: int
    managed: int
    """Optimizer states in managed memory, which are in no other part."""
    activations: int | None
    """With checkpointing: the input of every layer, and the head's weight where autocast casts it.
    None where there is no closed form.
    """
    logits: int | None
    """Of the loss; see LOSS_BYTES. None where there is no closed form."""


def parts(spec: TrainSpec) -> Parts:
    """Where the memory of a training step goes, of a spec that can be built.

    Raises NoClosedFormError as :func:`transformer`, and where ``modules_to_save`` hold each other.
    """
    model = transformer(spec.config)
    itemsize = ITEMSIZE[_base_dtype(spec)]
    # never embeddings, head and norms
    matrices = [one.weight for one in model.modules if one.kind == "linear" and spec.quant]
    unquantised = model.parameters - sum(map(prod, matrices))
    adapters = [] if spec.method == "full" else added(model, spec)
    everything = [Tensor(shape, itemsize) for shape in model.shapes]
    trained = everything if spec.method == "full" else adapters
    optimizer, managed = optimizer_bytes(spec.optimizer, trained)
    return Parts(
        weights=unquantised * itemsize + _packed(spec, matrices),
        quantisation=_quantisation(spec, matrices),
        adapters=_bytes(adapters),
        gradients=_bytes(trained),
        optimizer=optimizer,
        managed=managed,
        activations=_activations(model, spec),
        logits=_logits(model, spec),
    )


def added(model: Transformer, spec: TrainSpec) -> list[Tensor]:
    """What PEFT adds to the base and trains: A of (rank, in) and B of (out, rank) features for each
    adapted matrix, with DoRA a magnitude for each of out, and copies of ``modules_to_save``.
    """
    assert spec.rank is not None
    assert spec.adapter_dtype is not None
    tensors = []
    for outputs, inputs in (one.weight for one in _adapted(model, spec)):
        shapes = [(spec.rank, inputs), (outputs, spec.rank), *[(outputs,)] * spec.dora]
        tensors += [Tensor(shape, ITEMSIZE[spec.adapter_dtype]) for shape in shapes]
    for module in _saved(model, spec):
        tensors += [Tensor(shape, ITEMSIZE[_base_dtype(spec)]) for shape in module.shapes]
    return tensors


def _adapted(model: Transformer, spec: TrainSpec) -> list[Module]:
    linears = [one for one in model.modules if one.kind == "linear"]
    attention = [one for one in linears if {"self_attn", "attn"} & {*one.name.split(".")}]
    if spec.targets == "all-linear":
        chosen = linears
    elif spec.targets == "attention":
        chosen = attention
    else:
        names = ("q_proj", "v_proj", "qkv_proj", "c_attn")
        among, ends = (attention, names) if spec.targets == "qv" else (linears, spec.targets or ())
        chosen = [one for one in among if f".{one.name}".endswith(tuple(f".{end}" for end in ends))]
    saved = [f".{name}." for name in spec.modules_to_save or ()]
    return [one for one in chosen if not any(name in f".{one.name}." for name in saved)]


def _saved(model: Transformer, spec: TrainSpec) -> Iterator[Module]:
    """PEFT goes by how names end, and copies all that a module of such a name holds."""
    ends = tuple(spec.modules_to_save or ())
    for module in model.modules if ends else ():
        path = accumulate(module.name.split("."), "{}.{}".format)
        copied = [name for name in path if name.endswith(ends)]
        if len(copied) > 1:
            raise NoClosedFormError(f"modules_to_save: {copied[1]!r} is in another one")
        if copied:
            yield module


def packed_bytes(elements: int) -> int:
    """Of a 4-bit matrix itself: two elements a byte."""
    return _ceil(elements, 2)


def constants_bytes(elements: int, *, double_quant: bool) -> int:
    """Of the constants of a 4-bit matrix: 32 bit a block of 64 elements or, quantised once more, 8
    bit a block and 32 bit 256 blocks. That is 0.5 or 0.127 bit an element (QLoRA, section 3).
    """
    blocks = _ceil(elements, _WEIGHTS_BLOCK)
    return blocks + 4 * _ceil(blocks, _NESTED_BLOCK) if double_quant else 4 * blocks


def _packed(spec: TrainSpec, matrices: Iterable[tuple[int, ...]]) -> int:
    elements = [prod(one) for one in matrices]
    return sum(elements if spec.quant == "int8" else map(packed_bytes, elements))


def _quantisation(spec: TrainSpec, matrices: Iterable[tuple[int, ...]]) -> int:
    """Constants and tables, as bitsandbytes 0.49 and later keeps them."""
    if spec.quant == "int8":
        return sum(4 * outputs for outputs, _ in matrices)
    double_quant = bool(spec.double_quant)
    constants = [constants_bytes(prod(one), double_quant=double_quant) for one in matrices]
    if not double_quant:
        return sum(constants) + len(constants) * _LEVELS
    # and for each matrix a copy of the map and the mean of its constants; what is copied stays too
    return sum(constants) + len(constants) * (_LEVELS + _MAP + 4) + _MAP


def optimizer_bytes(optimizer: str, tensors: Collection[Tensor]) -> tuple[int, int]:
    """Of the optimizer's states for these tensors: on the GPU, and in managed memory."""
    on_gpu = managed = 0
    for tensor in tensors:
        states, constants = _states(optimizer, tensor)
        if optimizer.startswith("paged") and prod(tensor.shape) >= LEAST_PAGED:
            managed += states
        else:
            on_gpu += states
        on_gpu += constants
    if optimizer.endswith("8bit") and any(prod(one.shape) >= LEAST_IN_8_BIT for one in tensors):
        on_gpu += 2 * _MAP  # with and without a sign, shared by all
    return on_gpu, managed


def _states(optimizer: str, tensor: Tensor) -> tuple[int, int]:
    """Bytes of what has the tensor's size (Adafactor: a row and a column), and of the rest."""
    elements = prod(tensor.shape)
    if optimizer == "sgd":  # without momentum
        return 0, 0
    if optimizer in ("adamw", "adamw_fused"):
        # torch keeps the counter of steps in host memory unless it is fused
        return 2 * elements * tensor.itemsize, 4 if optimizer == "adamw_fused" else 0
    if optimizer == "adafactor":
        size = sum(tensor.shape) if len(tensor.shape) > 1 else elements
        return 4 * size, 4  # and the root mean square of the tensor
    if optimizer.endswith("8bit") and elements >= LEAST_IN_8_BIT:
        return 2 * elements, 2 * 4 * _ceil(elements, _STATES_BLOCK)
    return 2 * elements * 4, 0


def _activations(model: Transformer, spec: TrainSpec) -> int | None:
    if not spec.checkpointing or spec.liger or spec.compile:
        return None
    if spec.quant == "int8" and spec.checkpointing != "reentrant":
        # bitsandbytes keeps every input where checkpointing does not see it (ctx.tensors)
        return None
    dtype = _base_dtype(spec)
    if dtype != "fp32" and (dtype != spec.precision or model.post_norm):
        # from the second on the inputs may be fp32: two half precisions, a norm under autocast
        return None
    tokens = spec.batch * spec.seq
    inputs = model.layers * tokens * model.hidden * ITEMSIZE[dtype]
    cast = spec.autocast and dtype != spec.precision
    return inputs + cast * prod(model.modules[-1].weight) * ITEMSIZE[spec.precision]


def _logits(model: Transformer, spec: TrainSpec) -> int | None:
    if spec.liger or spec.compile:
        return None
    head = ITEMSIZE[spec.precision if spec.autocast else _base_dtype(spec)]
    vocabulary, _ = model.modules[-1].weight
    return (LOSS_BYTES + head * model.capped) * vocabulary * spec.batch * spec.seq


def _base_dtype(spec: TrainSpec) -> Dtype:
    """Of the unquantised base as it is trained with: k-bit preparation makes it fp32."""
    return "fp32" if spec.kbit_upcast else spec.dtype


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(prod(shape) * itemsize for shape, itemsize in tensors)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


Stage = Literal["none", "os", "os+g", "os+g+p"]
"""What ZeRO shards: nothing, optimizer states, and gradients, and parameters (stages 0 to 3)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStates:
    """Bytes on each device."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three."""
        return self.weights + self.gradients + self.optimizer


def zero(parameters: int, *, devices: int = 1, stage: Stage = "none") -> ModelStates:
    """ZeRO's model states of mixed-precision Adam: weights and gradients of 2 bytes, and 12 of fp32
    weights, momentum and variance.

    The training step's own ``full`` with autocast has the same 16 bytes otherwise: fp32 weights and
    gradients of 4, two states of 8.
    """
    return ModelStates(
        weights=_ceil(2 * parameters, devices if stage == "os+g+p" else 1),
        gradients=_ceil(2 * parameters, devices if stage in ("os+g", "os+g+p") else 1),
        optimizer=_ceil(12 * parameters, devices if stage != "none" else 1),
    )
