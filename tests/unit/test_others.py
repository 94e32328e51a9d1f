"""What is others' of a change of the used memory, with a GPU that says what it is told."""

from __future__ import annotations

import pytest

from pytest_vramfit.measurement import HeldChange
from pytest_vramfit.measuring.nvml import Card
from pytest_vramfit.measuring.others import LOADED_BYTES, NOISE_BYTES, Others

MIB, GIB = 2**20, 2**30
TIMED = "in the timed steps"


class Gpu:
    """With a context of half a GiB of this process, and nothing of others."""

    def __init__(self, *, tells: bool) -> None:
        self.tells = tells
        self.others = 0
        self.beside = 512 * MIB
        self.reserved = 0

    def card(self) -> Card:
        used = self.others + self.beside + self.reserved
        return Card(
            uuid="GPU-1", name="", driver="", total_bytes=0, reserved_bytes=0, used_bytes=used
        )

    def own_bytes(self) -> int | None:
        return self.beside + self.reserved if self.tells else None


@pytest.fixture(params=[True, False], ids=["told apart", "not told apart"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return Gpu(tells=request.param)


@pytest.fixture
def others(gpu: Gpu) -> Others:
    return Others(gpu, lambda: gpu.reserved)


def test_the_case_s_own_memory_is_no_change(gpu: Gpu, others: Others) -> None:
    gpu.reserved, gpu.beside = 10 * GIB, 512 * MIB + LOADED_BYTES
    others.look("before the timed steps", loading=True)
    gpu.reserved = 12 * GIB
    others.look(TIMED, loading=False)
    assert others.change is None
    assert others.change_now_bytes == 0


def test_what_others_take_in_the_timed_steps(gpu: Gpu, others: Others) -> None:
    gpu.reserved = 10 * GIB
    others.look("before the timed steps", loading=True)
    gpu.others = GIB
    others.look(TIMED, loading=False)
    assert others.change == HeldChange(bytes=GIB, when=TIMED)
    assert others.change_now_bytes == GIB


@pytest.mark.parametrize("tells", [True, False])
def test_what_others_take_while_this_process_loads(tells: bool) -> None:
    """Where it cannot be told apart, as much of it as this process cannot have loaded."""
    gpu = Gpu(tells=tells)
    others = Others(gpu, lambda: gpu.reserved)
    gpu.others, gpu.beside = 3 * GIB, 600 * MIB
    others.look("before memory ran out", loading=True)
    least = 3 * GIB if tells else 3 * GIB + 88 * MIB - LOADED_BYTES
    assert others.change == HeldChange(bytes=least, when="before memory ran out")


def test_what_others_give_back(gpu: Gpu, others: Others) -> None:
    gpu.others = 2 * GIB
    others.begin()
    gpu.others = 0
    others.look("before the timed steps", loading=True)
    assert others.change == HeldChange(bytes=-2 * GIB, when="before the timed steps")


def test_noise_is_no_change(gpu: Gpu, others: Others) -> None:
    gpu.others = NOISE_BYTES
    others.look(TIMED, loading=False)
    assert others.change is None
    gpu.others += 1
    others.look(TIMED, loading=False)
    assert others.change == HeldChange(bytes=NOISE_BYTES + 1, when=TIMED)


def test_the_largest_change_stays_when_it_is_over(gpu: Gpu, others: Others) -> None:
    others.look("before the timed steps", loading=True)
    gpu.others = 2 * GIB
    others.look(TIMED, loading=False)
    gpu.others = 0
    others.look("later", loading=False)
    assert others.change == HeldChange(bytes=2 * GIB, when=TIMED)
    assert others.change_now_bytes == 0


def test_a_case_begins_anew(gpu: Gpu, others: Others) -> None:
    gpu.others = 2 * GIB
    others.look(TIMED, loading=False)
    others.begin()
    others.look(TIMED, loading=False)
    assert others.change is None


@pytest.mark.parametrize("tells", [True, False])
def test_memory_that_the_driver_moves_hides_others_unless_they_are_told_apart(tells: bool) -> None:
    gpu = Gpu(tells=tells)
    others = Others(gpu, lambda: gpu.reserved)
    others.managed = True
    gpu.others = GIB
    others.look(TIMED, loading=False)
    assert (others.change is not None) is tells
