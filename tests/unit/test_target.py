"""What is predicted for: cards of the catalogue, cards of a size, and what cuBLAS takes on them."""

from __future__ import annotations

import json

import pytest

from pytest_vramfit.catalog import gpus
from pytest_vramfit.estimating.target import Target, Workspaces, target_of

MIB, GIB = 2**20, 2**30


def test_a_card_of_the_catalogue_has_its_own_figures():
    target = target_of("T4", 0)
    gpu = gpus.find("T4")
    assert (target.name, target.total_bytes) == (gpu.name, gpu.memory_bytes)
    assert target.capability == (7, 5)
    assert target.reserved_bytes == gpu.reserved_bytes > 0
    assert target.outside_bytes == gpu.outside_bytes > 0
    assert target.usable_bytes == gpu.memory_bytes - gpu.reserved_bytes
    assert target.torch is None


def test_every_card_of_the_catalogue_is_one():
    """What was seen of it is taken, and the most that was seen of any where it was not."""
    for name in gpus.names():
        target, gpu = target_of(name, 0), gpus.find(name)
        assert (target.name, target.total_bytes) == (name, gpu.memory_bytes)
        assert target.capability == gpu.capability
        if gpu.reserved_bytes is None:
            assert 0.02 <= target.reserved_bytes / target.total_bytes <= 0.03
        else:
            assert target.reserved_bytes == gpu.reserved_bytes
        assert target.outside_bytes == (gpu.outside_bytes or 776 * MIB)


@pytest.mark.parametrize("name", [None, "no such card"])
def test_a_card_of_a_size_is_one_of_ampere_or_later(name):
    target = target_of(name, 12 * GIB)
    assert (target.name, target.total_bytes) == ("a card of 12,288 MiB", 12 * GIB)
    assert target.capability >= (8, 0)
    assert 0.02 <= target.reserved_bytes / target.total_bytes <= 0.03
    assert target.outside_bytes == 776 * MIB
    assert target.usable_bytes == target.total_bytes - target.reserved_bytes


LARGE, SMALL = 32 * MIB, 8_519_680
"""As CublasHandlePool.cpp has them: 4096 of 8 KiB, or 2 of 4 MiB and 16 of 8 KiB."""


@pytest.mark.parametrize(
    ("capability", "version", "cublas_bytes"),
    [
        ((7, 5), (2, 11), SMALL),
        ((7, 5), (2, 14), SMALL),
        ((8, 0), (2, 14), SMALL),
        ((8, 6), (2, 13), SMALL),
        ((8, 9), (2, 13), SMALL),
        ((9, 0), (2, 8), LARGE),
        ((9, 0), (2, 14), LARGE),
        ((10, 0), (2, 11), SMALL),
        ((10, 0), (2, 12), LARGE),
        ((11, 0), (2, 13), SMALL),
        ((11, 0), (2, 14), LARGE),
        ((12, 0), (2, 11), SMALL),
        ((12, 0), (2, 12), LARGE),
    ],
)
def test_cublas_s_workspace_goes_by_capability_and_version(capability, version, cublas_bytes):
    target = Target(name="A card", total_bytes=GIB, capability=capability, torch=version)
    assert target.workspaces.cublas_bytes == cublas_bytes


@pytest.mark.parametrize(("version", "each_call"), [((2, 8), True), ((2, 9), False)])
def test_cublas_lt_has_a_megabyte_which_stays_since_2_9(version, each_call):
    target = Target(name="A card", total_bytes=GIB, capability=(9, 0), torch=version)
    assert target.workspaces == Workspaces(
        cublas_bytes=LARGE, cublas_lt_bytes=MIB, lt_for_each_call=each_call
    )


def test_the_cpu_has_none():
    assert Target(name="The CPU", total_bytes=GIB).workspaces is None


@pytest.mark.parametrize(
    "target",
    [
        target_of("T4", 0),
        target_of(None, 12 * GIB),
        Target(name="The CPU", total_bytes=GIB),
        Target(name="A card", total_bytes=GIB, capability=(9, 0), torch=(2, 11)),
    ],
    ids=lambda one: one.name,
)
def test_it_comes_back_from_json_as_it_was(target):
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
