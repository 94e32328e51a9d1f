"""What a replay reads off the allocator at the marks of a trace, on traces made by hand."""

from __future__ import annotations

import pytest

from pytest_vramfit.estimating.allocator import falling
from pytest_vramfit.estimating.allocator_settings import AllocatorSettings
from pytest_vramfit.estimating.replay import GotThrough, RanOut, Replay, ledger
from pytest_vramfit.estimating.traced import Traced
from pytest_vramfit.events import LEDGER, Action, Block
from pytest_vramfit.measurement import Peaks

KIB, MIB = 2**10, 2**20
SETTINGS = AllocatorSettings()
CACHE = "empty cache"


def traced(*script, blocks=None, vocabulary=0):
    """A trace of a script: a name with a size allocates, the name alone frees it, any other text is
    a mark.
    """
    events, marks, numbers = [], [], {}
    for line in script:
        if line == CACHE:
            events.append((Action.EMPTY_CACHE, 0, 0))
        elif isinstance(line, tuple):
            name, size_bytes = line
            numbers[name] = len(numbers)
            events.append((Action.ALLOCATE, numbers[name], size_bytes))
        elif line in numbers:
            events.append((Action.FREE, numbers[line], 0))
        else:
            events.append((Action.MARK, len(marks), 0))
            marks.append(line)
    made = {name: Block(made_by="aten.mm", shape=(1,), phase="load") for name in numbers}
    return Traced(
        events=tuple(events),
        blocks=tuple({**made, **(blocks or {})}.values()),
        marks=tuple(marks),
        managed_bytes=0,
        vocabulary=vocabulary,
    )


def phase(name, *script):
    return (f"{name} begins", *script, f"{name} ends")


def run(trace, **keywords):
    return Replay(trace, SETTINGS, **keywords).run()


LOADED = (
    ("base", 300 * KIB),
    "weights",
    ("for a while", 200 * KIB),
    ("adapters", 100 * KIB),
    "for a while",
    "loaded",
    CACHE,
    "settled",
)
QUIET = (*phase("forward"), *phase("backward"), *phase("optimizer"))


def test_the_weights_the_peak_of_loading_and_what_is_resident():
    seen = run(traced(*LOADED, *QUIET))
    assert isinstance(seen, GotThrough)
    assert seen.weights_bytes == 300 * KIB
    assert seen.load_peak_bytes == 600 * KIB
    assert seen.resident_bytes == 400 * KIB


def test_bytes_are_those_of_whole_blocks():
    seen = run(traced(("base", 1), "weights", ("adapters", 513), "loaded", "settled", *QUIET))
    assert (seen.weights_bytes, seen.resident_bytes) == (512, 512 + 1024)


def test_each_phase_of_each_step_has_its_own_peak():
    one = (
        *phase("forward", ("saved", 50 * KIB), ("temporary", 8 * KIB), "temporary"),
        *phase("backward", ("gradients", 100 * KIB), "saved"),
        *phase("optimizer", ("states", 200 * KIB), "gradients"),
    )
    two = (
        *phase("forward", ("saved again", 50 * KIB)),
        *phase("backward", ("gradients again", 100 * KIB), "saved again"),
        *phase("optimizer", "gradients again"),
    )
    seen = run(traced(*LOADED, *one, *two))
    assert seen.steps == (
        Peaks(forward=458 * KIB, backward=550 * KIB, optimizer=700 * KIB),
        Peaks(forward=650 * KIB, backward=750 * KIB, optimizer=700 * KIB),
    )
    assert [one.step for one in seen.steps] == [700 * KIB, 750 * KIB]
    assert seen.after_step_bytes == (600 * KIB, 600 * KIB)


def test_of_several_micro_batches_the_worst_of_each_phase_counts():
    def batch(number, forward, backward):
        return (
            *phase("forward", (f"forward {number}", forward * KIB), f"forward {number}"),
            *phase("backward", (f"backward {number}", backward * KIB), f"backward {number}"),
        )

    step = (*batch(1, 10, 70), *batch(2, 30, 20), *batch(3, 20, 60), *phase("optimizer"))
    (seen,) = run(traced("loaded", "settled", *step)).steps
    assert seen == Peaks(forward=30 * KIB, backward=70 * KIB, optimizer=0)


def test_what_is_reserved_counts_since_the_cache_was_emptied_after_loading():
    before = (("in loading", 30 * MIB), "in loading", "loaded", CACHE, "settled")
    step = (*phase("forward", ("saved", 11 * MIB)), *phase("backward", "saved"))
    seen = run(traced(*before, *step, *phase("optimizer")))
    assert seen.load_peak_bytes == 30 * MIB
    assert seen.peak_reserved_bytes == 12 * MIB  # in steps of 2


def test_what_stays_reserved_after_loading_counts_where_no_cache_is_emptied():
    before = (("in loading", 30 * MIB), "in loading", "loaded", "settled")
    assert run(traced(*before, *QUIET)).peak_reserved_bytes == 30 * MIB


def test_what_is_reserved_between_phases_counts_too():
    step = (*phase("forward"), ("between", 40 * MIB), "between", CACHE, *phase("backward"))
    seen = run(traced("loaded", "settled", *step, *phase("optimizer")))
    assert seen.peak_reserved_bytes == 40 * MIB
    assert seen.steps[0].step == 0


AFTER = (
    *("loaded", "settled", *QUIET),
    *phase("eval", ("logits", 30 * MIB), "logits"),
    *phase("merge", ("merged", 50 * MIB)),
)


def test_what_follows_the_steps_has_peaks_of_its_own():
    seen = run(traced(*AFTER))
    assert seen.phases == {"eval": 30 * MIB, "merge": 50 * MIB}
    assert seen.steps[0].step == seen.peak_reserved_bytes == 0
    assert seen.after_step_bytes == (0,)


def test_what_is_reserved_after_a_phase_is_all_up_to_its_end():
    """The evaluation's cache is too small for what is merged."""
    seen = run(traced(*AFTER))
    assert seen.reserved_after_phase_bytes == {"eval": 30 * MIB, "merge": 80 * MIB}


def test_the_most_that_lives_up_to_the_end_of_the_steps():
    """In whole blocks, while loading or later, and not of what follows the steps."""
    steps = (*phase("forward", ("saved", 11 * MIB)), *phase("backward", ("gradients", 1), "saved"))
    after = phase("eval", ("logits", 30 * MIB), "logits")
    whole = (
        *phase("optimizer"),
        *phase("forward"),
        *phase("backward"),
        *phase("optimizer"),
        *after,
    )
    assert traced(*LOADED, *steps, *whole).most_alive_bytes() == 400 * KIB + 11 * MIB + 512
    loading = (("in loading", 20 * MIB), "in loading")
    assert traced(*loading, *LOADED, *steps, *whole).most_alive_bytes() == 20 * MIB


def test_what_follows_the_steps_and_has_no_room_leaves_them_as_they_are():
    seen = run(traced(*AFTER), capacity_bytes=40 * MIB)
    assert isinstance(seen, GotThrough)
    assert seen.phases == {"eval": 30 * MIB}


PEAKS = (
    "loaded",
    "settled",
    *phase("forward", ("a", 30 * KIB), "a"),
    *phase("backward", ("b", 40 * KIB), ("c", 20 * KIB), "c", "b"),
    *phase("optimizer", ("d", 10 * KIB)),
    *phase("forward", ("e", 10 * KIB), ("f", 90 * KIB), "f"),
    *phase("backward", ("g", 50 * KIB), "e", "g"),
    *phase("optimizer"),
)


def test_the_event_of_the_peak_is_the_allocation_that_made_the_last_step_s():
    trace = traced(*PEAKS)
    event = run(trace).peak_event
    assert trace.events[event][::2] == (Action.ALLOCATE, 90 * KIB)
    assert sum(ledger(trace, SETTINGS, event).values()) == run(trace).steps[-1].step == 110 * KIB


def test_it_is_where_the_phase_begins_that_allocates_nothing():
    step = (*phase("forward", ("a", 9 * KIB)), *phase("backward"), "a", *phase("optimizer"))
    trace = traced("loaded", "settled", ("base", 5 * KIB), *step)
    first = run(trace)
    assert trace.events[first.peak_event][2] == 9 * KIB  # not more than in forward, so not later
    still = traced(("base", 5 * KIB), "loaded", "settled", *QUIET)
    event = run(still).peak_event
    assert still.marks[still.events[event][1]] == "forward begins"
    assert sum(ledger(still, SETTINGS, event).values()) == 5 * KIB


FULL = 64 * MIB
FILLS = ("large", 60 * MIB)


@pytest.mark.parametrize(
    ("script", "phase_name", "step"),
    [
        ((("base", 65 * MIB), "loaded", "settled", *QUIET), "load", 0),
        ((FILLS, "loaded", "settled", ("early", 12 * MIB), *QUIET), "load", 0),
        ((FILLS, "loaded", "settled", *phase("forward", ("more", 12 * MIB))), "forward", 1),
        (
            (
                FILLS,
                "loaded",
                "settled",
                *QUIET,
                *phase("forward"),
                *phase("backward", ("x", FULL)),
            ),
            "backward",
            2,
        ),
        (
            (FILLS, "loaded", "settled", *QUIET[:4], *phase("optimizer", ("x", FULL))),
            "optimizer",
            1,
        ),
    ],
)
def test_where_it_runs_out(script, phase_name, step):
    seen = run(traced(*script), capacity_bytes=FULL)
    assert isinstance(seen, RanOut)
    assert (seen.phase, seen.step) == (phase_name, step)


def test_what_it_says_when_it_runs_out():
    script = (FILLS, ("small", 100), "small", "loaded", "settled", ("more", 12 * MIB))
    assert run(traced(*script, *QUIET), capacity_bytes=FULL) == RanOut(
        phase="load",
        step=0,
        requested_bytes=12 * MIB,
        free_bytes=4 * MIB,  # the small one's segment was given back
        allocated_bytes=60 * MIB,
        reserved_bytes=60 * MIB,
    )


def test_giving_back_what_is_cached_gets_it_through_and_counts_as_a_retry():
    script = (("a", 40 * MIB), "a", "loaded", "settled", *phase("forward", ("b", 50 * MIB)))
    trace = traced(*script, *phase("backward"), *phase("optimizer"))
    free, pressed = run(trace), run(trace, capacity_bytes=FULL)
    assert (free.retries, free.peak_reserved_bytes) == (0, 90 * MIB)
    assert (pressed.retries, pressed.peak_reserved_bytes) == (1, 50 * MIB)


def test_addresses_decide_between_free_blocks_of_one_size():
    """The lower is taken: a segment of its own, or the rest of one that cannot be given back."""
    script = (("own", 12 * MIB), ("in a larger one", 8 * MIB), "own", ("again", 12 * MIB), CACHE)
    trace = traced(*script, "loaded", "settled", *QUIET)
    assert run(trace).peak_reserved_bytes == (12 + 20) * MIB
    assert run(trace, addresses=falling()).peak_reserved_bytes == 20 * MIB


PARTS = {
    "base": Block("aten.empty", (8,), "load", "weights"),
    "scales": Block("aten.empty", (8,), "load", "quantisation"),
    "a": Block("aten.empty", (8,), "load", "adapters"),
    "grad": Block("aten.mm", (8,), "backward", "gradients"),
    "state": Block("aten.zeros", (8,), "optimizer"),
    "buffer": Block("aten.sqrt", (4, 32), "optimizer"),
    "weight": Block("bitsandbytes.dequantize_4bit.default", (4, 32), "forward"),
    "logits": Block("aten.mm", (4, 32), "forward"),
    "hidden": Block("aten.mm", (32, 4), "forward"),
    "number": Block("aten.sum", (), "forward"),
    "cublas": Block("cublas", (8,), "backward", "workspace"),
}


def test_a_block_is_of_the_part_that_was_said_or_that_its_making_tells():
    sizes = {name: (number + 1) * 512 for number, name in enumerate(PARTS)}
    trace = traced(*sizes.items(), blocks=PARTS, vocabulary=32)
    seen = ledger(trace, SETTINGS, len(trace.events) - 1)
    assert tuple(seen) == LEDGER
    assert seen == {
        "weights": sizes["base"],
        "quantisation": sizes["scales"],
        "adapters": sizes["a"],
        "gradients": sizes["grad"],
        "optimizer": sizes["state"] + sizes["buffer"],
        "activations": sizes["hidden"] + sizes["number"],
        "logits": sizes["logits"],
        "workspace": sizes["weight"] + sizes["cublas"],
    }


def test_the_ledger_has_what_lives_right_after_the_event():
    trace = traced(("a", 512), ("b", 1024), "a", ("c", 2048))
    totals = [sum(ledger(trace, SETTINGS, event).values()) for event in range(4)]
    assert totals == [512, 1536, 1024, 3072]


def test_the_ledger_has_the_rest_of_a_block_that_is_not_split():
    """Of 20 MiB, 19.5 MiB are asked for: half a MiB is too little for a block of its own."""
    trace = traced(("a", 20 * MIB), "a", ("b", 19 * MIB + 512 * KIB))
    assert sum(ledger(trace, SETTINGS, 2).values()) == 20 * MIB
