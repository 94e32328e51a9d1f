"""The line at the top of a run: what will be measured on."""

from __future__ import annotations

from pytest_vramfit.measurement import Engine
from pytest_vramfit.measuring import host, nvml
from pytest_vramfit.reporting import figures, words


def line(engine: Engine, card: str | None) -> str:
    """Device, driver and memory of the engine."""
    if engine == "estimate":
        return f"vramfit: estimate engine, for {card or 'the card of each marker'}; nothing is run"
    if engine == "cpu":
        limit = f", judged by a card of {card}" if card else ""
        memory = figures.size(host.memory_bytes())
        return f"vramfit: cpu engine on {host.processor()}, {memory}{limit}"
    try:
        cards = nvml.cards()
    except nvml.NvmlUnavailableError as error:
        return f"vramfit: gpu engine, but no usable GPU: {error}"
    if not cards:
        return "vramfit: gpu engine, but no usable GPU: NVML lists none"
    listed = ", ".join(
        f"{one.name} {one.total_bytes // 2**20:,} MiB{_held(one.used_bytes)}" for one in cards
    )
    return f"vramfit: gpu engine on {listed}, driver {cards[0].driver}"


def _held(used_bytes: int) -> str:
    """`` (2.1 GiB held by others)``, if it is worth naming: this run holds nothing yet."""
    text = words.held(used_bytes).removeprefix(", ")
    return f" ({text})" if text else ""


def without_engine(gpu_option: str) -> str:
    """Results were asked for, but nothing will be measured."""
    return (
        "vramfit: no engine was asked for, so no results are written; "
        f"run with {gpu_option} or --vramfit=cpu"
    )
