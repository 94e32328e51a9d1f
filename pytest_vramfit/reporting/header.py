"""The lines at the top of a run: what will be measured on, and what is wrong with it."""

from __future__ import annotations

from pytest_vramfit.measurement import Engine
from pytest_vramfit.measuring import health, host, nvml
from pytest_vramfit.measuring.health import Fault
from pytest_vramfit.reporting import figures, words

_FAULTS: dict[Fault, str] = {
    "lost": "it does not answer",
    "reset": "an error left it in want of a reset",
    "reboot": "an error left it in want of a reboot of the machine",
    "drain": "an error left it in want of being drained",
    "pages pending": "pages of its memory are to be retired with its next reset",
    "rows pending": "rows of its memory are to be remapped with its next reset",
    "rows failed": "rows of its memory could not be remapped: it is to be replaced",
    "ecc": "it had memory errors that ECC could not correct",
    "hot": "its clocks are held down by heat",
}


def ailments() -> list[str]:
    """A line for each GPU with which something is wrong."""
    try:
        found = health.ailing()
    except nvml.NvmlUnavailableError:  # which :func:`line` says
        return []
    return [
        f"vramfit: WARNING: GPU {one.number}{f' ({one.name})' if one.name else ''}: "
        + "; ".join(_FAULTS[fault] for fault in one.faults)
        for one in found
    ]


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
