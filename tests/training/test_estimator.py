"""What is predicted again is not traced again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from measuring import LEAST
from tracing import CARD, CPU

from pytest_vramfit.estimating import estimate, run
from pytest_vramfit.estimating.run import trace
from pytest_vramfit.events import Action


def test_a_trace_serves_its_case_with_any_capacity_and_without_its_phases(spec_of, monkeypatch):
    traced = []

    def counted(*args):
        traced.append(args)
        return trace(*args)

    monkeypatch.setattr(run, "trace", counted)
    it, spec = estimate.Estimator(), spec_of()
    with_eval = replace(LEAST, phases=("eval",))
    whole = it.estimate(spec, CPU, schedule=with_eval)
    assert it.estimate(spec, CPU, schedule=with_eval).phases == whole.phases
    steps_alone = it.estimate(spec, CPU, 2**20)
    assert (steps_alone.memory, steps_alone.phases) == (whole.memory, {})
    assert len(traced) == 1
    it.estimate(spec, CPU, schedule=replace(with_eval, eval_batch=3))
    assert len(traced) == 2
    it.estimate(spec_of(seq=9), CPU)
    assert len(traced) == 3


def test_what_finds_room_for_its_peak_alone_may_run_out(spec_of):
    """Between the steps' pieces: in the model it needs 2 to 4 % more than its peak."""
    spec = spec_of(model="Qwen2.5-0.5B", rank=16, seq=512)
    with_eval = replace(LEAST, phases=("eval",), eval_batch=5)
    it = estimate.Estimator()
    peak = it.estimate(spec, CARD, schedule=with_eval).phases["eval"].peak_bytes
    for share, undecided in ((1.01, ("eval",)), (1.08, ())):
        seen = it.estimate(spec, CARD, int(share * peak), with_eval).prediction
        assert (seen.fits, seen.undecided) == (True, undecided)


def test_where_it_runs_out_is_told_of_the_card_itself(spec_of):
    """Not of the larger one that it must not fit either, to be sure."""
    it = estimate.Estimator()
    capacity = int(0.8 * it.estimate(spec_of(), CARD).prediction.reserved_bytes[0])
    oom = it.estimate(spec_of(), CARD, capacity).oom
    assert oom.reserved_bytes + oom.free_bytes == capacity


def test_nothing_follows_steps_that_ran_out(spec_of):
    seen = estimate.Estimator().estimate(spec_of(), CARD, 2**20, replace(LEAST, phases=("eval",)))
    assert seen.oom is not None
    assert seen.phases == {}


@pytest.mark.filterwarnings("ignore:Merge lora module to 8-bit linear:UserWarning")
@pytest.mark.filterwarnings("ignore:Merge lora module to 4-bit linear:UserWarning")
@pytest.mark.parametrize(("quant", "in_float32"), [("int8", False), ("nf4", True)])
def test_a_merged_weight_comes_back_to_the_card_as_it_is_quantised(quant, in_float32, spec_of):
    traced = trace(spec_of(quant=quant), CARD, ("merge",))
    sizes = {number: size for action, number, size in traced.events if action is Action.ALLOCATE}
    element_bytes = {
        sizes[number] // math.prod(one.shape)
        for number, one in enumerate(traced.blocks)
        if one.phase == "merge" and str(one.made_by).startswith("aten.empty_like")
    }
    assert (4 in element_bytes, 2 in element_bytes) == (in_float32, not in_float32)


def test_a_card_that_serves_from_host_memory_is_left_by_what_is_reserved(spec_of):
    """With what its allocator reserves and a margin to either side; it never runs out."""
    spec, card = spec_of(), replace(CARD, overflow="spill")
    it = estimate.Estimator()
    low, high = it.estimate(spec, card).prediction.reserved_bytes
    for capacity, fits in ((high / 0.994, True), (high, None), (low, None), (low / 1.006, False)):
        seen = it.estimate(spec, card, int(capacity), replace(LEAST, phases=("eval",)))
        undecided = () if fits is not None else ("eval",)
        assert (seen.oom, seen.prediction.fits) == (None, fits)
        assert seen.prediction.undecided == undecided
        assert [*seen.phases] == ["eval"]
        assert (seen.phases["eval"].off_card_bytes is not None) == (fits is False)


def test_a_phase_may_leave_a_card_on_which_the_steps_stay(spec_of):
    """By what is reserved to its end, the steps' cache included."""
    spec, card = spec_of(), replace(CARD, overflow="spill")
    schedule = replace(LEAST, phases=("eval",), eval_batch=64)
    it = estimate.Estimator()
    room = int(it.estimate(spec, card).prediction.reserved_bytes[1] * 1.01)
    seen = it.estimate(spec, card, room, schedule)
    eval_peak = seen.phases["eval"].peak_bytes
    assert seen.prediction.fits is True
    assert eval_peak > room
    assert seen.prediction.undecided == ()
    assert seen.phases["eval"].off_card_bytes >= eval_peak - room
