"""How many layers a spec's model has, and the same model with another number of them."""

from __future__ import annotations

from dataclasses import replace

from pytest_vramfit.spec import TrainSpec

_NAMES = ("num_hidden_layers", "n_layer")


def layers_of(spec: TrainSpec) -> int | None:
    """None where the config's values do not say, or say more of each."""
    layers = next((spec.config[name] for name in _NAMES if name in spec.config), None)
    lists = [value for value in spec.config.values() if isinstance(value, list | tuple)]
    if not isinstance(layers, int) or any(len(one) == layers for one in lists):
        return None
    return layers


def with_layers(spec: TrainSpec, number: int) -> TrainSpec:
    """The spec of a model of so many layers."""
    named = {name: number for name in _NAMES if name in spec.config}
    return replace(spec, config={**spec.config, **named})
