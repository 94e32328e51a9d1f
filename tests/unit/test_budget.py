"""What a process can have of a GPU: not what others hold or Windows keeps. Without memory of its
own a GPU needs a budget.
"""

from __future__ import annotations

import pytest

from pytest_vramfit.measurement import Device, UnsupportedError
from pytest_vramfit.measuring.budget import check_own_memory, emulated

GIB = 2**30
GPU = Device(name="GB10", total_bytes=128 * GIB, reserved_bytes=0, held_bytes=0)


@pytest.mark.parametrize(("unified", "card"), [(False, None), (False, GPU), (True, GPU)])
def test_with_memory_of_its_own_or_a_budget_it_is_judged(
    unified: bool, card: Device | None
) -> None:
    check_own_memory(GPU, card, unified=unified)


def test_without_either_it_is_unsupported() -> None:
    with pytest.raises(UnsupportedError) as refused:
        check_own_memory(GPU, None, unified=True)
    assert str(refused.value) == (
        "GB10 shares the host's memory, so there is no VRAM to fit; give the budget to judge by: "
        "card='24GiB' in the marker, or --vramfit-card"
    )


@pytest.mark.parametrize(("granted", "usable"), [(None, 13), (14, 13), (13, 13), (12, 12)])
def test_what_windows_does_not_grant_cannot_be_had(granted: int | None, usable: int) -> None:
    card = Device(
        name="Card", total_bytes=16, reserved_bytes=1, held_bytes=2, granted_bytes=granted
    )
    assert card.usable_bytes == usable


H200 = Device(
    name="H200", total_bytes=100 * GIB, reserved_bytes=GIB, held_bytes=9 * GIB, driver="580.1"
)


def small(usable_bytes: int) -> Device:
    return Device(name="Small", total_bytes=usable_bytes, reserved_bytes=0, held_bytes=0)


def test_a_gpu_passes_for_a_card_as_large_as_what_is_left_of_it() -> None:
    card = emulated(small(90 * GIB), H200)
    assert (card.name, card.usable_bytes, card.driver) == ("Small", 90 * GIB, "580.1")
    assert card.emulated_on == "H200"


def test_a_gpu_cannot_pass_for_a_larger_card() -> None:
    with pytest.raises(UnsupportedError) as refused:
        emulated(small(90 * GIB + 2**20), H200)
    assert str(refused.value) == (
        "Small has 92,161 MiB for a process, this H200 only 92,160: a card can be emulated on a "
        "larger GPU only"
    )
