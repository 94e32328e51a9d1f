"""What a process can have of a GPU: not what others hold or Windows keeps. Without memory of its
own a GPU needs a budget.
"""

from __future__ import annotations

import pytest

from pytest_vramfit.measurement import Device, UnsupportedError
from pytest_vramfit.measuring.cuda import check_own_memory, held_bytes
from pytest_vramfit.measuring.nvml import Card
from pytest_vramfit.measuring.wddm import Usage

GPU = Device(name="GB10", total_bytes=128 * 2**30, reserved_bytes=0, held_bytes=0)


@pytest.mark.parametrize(("unified", "card"), [(False, None), (False, GPU), (True, GPU)])
def test_with_memory_of_its_own_or_a_budget_it_is_judged(unified, card):
    check_own_memory(GPU, card, unified=unified)


def test_without_either_it_is_unsupported():
    with pytest.raises(UnsupportedError) as refused:
        check_own_memory(GPU, None, unified=True)
    assert str(refused.value) == (
        "GB10 shares the host's memory, so there is no VRAM to fit; give the budget to judge by: "
        "card='24GiB' in the marker, or --vramfit-card"
    )


CARD = Card(
    uuid="GPU-1", name="Card", driver="1", total_bytes=160, reserved_bytes=10, used_bytes=20
)


@pytest.mark.parametrize(
    ("granted", "held"), [(None, 20), (140, 20), (130, 20), (129, 21), (100, 50)]
)
def test_what_windows_does_not_grant_is_held(granted, held):
    windows = granted and Usage(local_bytes=0, non_local_bytes=0, budget_bytes=granted)
    assert held_bytes(CARD, windows) == held
