"""A GPU without memory of its own needs a budget to be judged by."""

from __future__ import annotations

import pytest

from pytest_vramfit.measurement import Device, UnsupportedError
from pytest_vramfit.measuring.cuda import check_own_memory

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
