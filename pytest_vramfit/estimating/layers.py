"""A case's trace, from those of models of a few of its layers where all of them are alike."""

from __future__ import annotations

import re
from collections.abc import Hashable

from torch import nn

from pytest_vramfit.estimating import run
from pytest_vramfit.estimating.depth import layers_of, with_layers
from pytest_vramfit.estimating.repetition import with_more_layers
from pytest_vramfit.estimating.sections import IrregularError
from pytest_vramfit.estimating.target import Target
from pytest_vramfit.estimating.traced import Traced
from pytest_vramfit.spec import Phase, TrainSpec
from pytest_vramfit.training import adapters, model

_LEAST = 12
"""Fewer layers are traced as fast as the short models."""
_SHORTEST, _LONGEST = 2, 5
"""Three short models of 2 to 4 layers mostly do; of 2 layers, both may be unlike those between."""
_MOST_KEPT = 4
_NUMBER = re.compile(r"(layer|block)_(idx|id|index|number)$")
_PLAIN = (bool, int, float, str, type(None))


class Tracer:
    """Traces cases; the last traces of models of a few layers are kept, for those of more."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Traced] = {}

    def trace(
        self, spec: TrainSpec, target: Target, phases: tuple[Phase, ...] = (), eval_batch: int = 1
    ) -> Traced:
        """As :func:`run.trace` of the whole model, event for event.

        Raises UnbuildableError where the spec does not fit the model.
        """
        layers = layers_of(spec) or 0
        if layers in range(_SHORTEST, _LONGEST + 1):
            return self._of_few(spec, target, phases, eval_batch)
        if layers < _LEAST or not _may_be_repeated(spec, layers):
            return run.trace(spec, target, phases, eval_batch)
        for shortest in (_SHORTEST, _SHORTEST + 1):
            first, second, third = (
                self._of_few(with_layers(spec, shortest + more), target, phases, eval_batch)
                for more in range(3)
            )
            try:
                return with_more_layers((first, second, third), layers - shortest)
            except IrregularError:
                continue
        return run.trace(spec, target, phases, eval_batch)

    def _of_few(
        self, spec: TrainSpec, target: Target, phases: tuple[Phase, ...], eval_batch: int
    ) -> Traced:
        key = (spec.digest, target, phases, eval_batch)
        traced = self._kept.pop(key, None)
        if traced is None:
            traced = run.trace(spec, target, phases, eval_batch)
        self._kept[key] = traced
        for oldest in [*self._kept][:-_MOST_KEPT]:
            del self._kept[oldest]
        return traced


def _may_be_repeated(spec: TrainSpec, layers: int) -> bool:
    """Whether all layers look alike, and as those of a short model do.

    Not with weights from a checkpoint: a block of the model's size, up to a limit, comes first.
    """
    if spec.weights != "random":
        return False
    looks = _looks(spec, layers)
    return len(looks) == 1 and looks == _looks(with_layers(spec, _LONGEST), _LONGEST)


def _looks(spec: TrainSpec, layers: int) -> set[Hashable]:
    """What its layers look like, each kind once; none where it is not told. Raises
    UnbuildableError.
    """
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    for value in outline.config.to_dict().values():  # such as a kind of attention for each layer
        if isinstance(value, list) and len(value) == layers and len({*map(str, value)}) > 1:
            return set()
    return {
        tuple(
            (part, _look(module), _is_trained(f"{name}.{number}.{part}", adapted, spec))
            for part, module in layer.named_modules()
        )
        for name, stack in outline.named_modules()
        if isinstance(stack, nn.ModuleList) and len(stack) == layers
        for number, layer in enumerate(stack)
    }


def _look(module: nn.Module) -> Hashable:
    """All of a module that its memory may depend on; not which layer it is of."""
    values = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN) and not _NUMBER.search(name)
    }
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return (
        type(module),
        repr(sorted(values.items())),
        tuple((name, type(one), one.shape, one.dtype, one.requires_grad) for name, one in tensors),
    )


def _is_trained(name: str, adapted: frozenset[str], spec: TrainSpec) -> tuple[bool, bool]:
    """Whether it gets an adapter, and whether it is trained as a whole."""
    saved = spec.modules_to_save or ()
    return name in adapted, any(adapters.is_called(one, name) for one in saved)
