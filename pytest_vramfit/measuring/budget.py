"""What a process can have of a GPU, and which card that GPU can pass for."""

from __future__ import annotations

from dataclasses import replace

from pytest_vramfit.measurement import Device, UnsupportedError


def check_own_memory(gpu: Device, card: Device | None, *, unified: bool) -> None:
    """Raise UnsupportedError where there is no memory but the host's to judge by."""
    if unified and card is None:
        raise UnsupportedError(
            f"{gpu.name} shares the host's memory, so there is no VRAM to fit; give the budget to "
            "judge by: card='24GiB' in the marker, or --vramfit-card"
        )


def emulated(card: Device, gpu: Device) -> Device:
    """The GPU as that card. Raises UnsupportedError where it has not as much memory."""
    if card.usable_bytes > gpu.usable_bytes:
        raise UnsupportedError(
            f"{card.name} has {card.usable_bytes / 2**20:,.0f} MiB for a process, this {gpu.name} "
            f"only {gpu.usable_bytes / 2**20:,.0f}: a card can be emulated on a larger GPU only"
        )
    return replace(card, driver=gpu.driver, emulated_on=gpu.name)
