"""The figures of a case as properties of its JUnit test case."""

from __future__ import annotations

import pytest
from samples import GIB, MIB, RAN_OUT, SPEC, case, with_memory

from pytest_vramfit.reporting import junit, results


def test_properties_of_a_case_that_ran() -> None:
    assert list(junit.properties(results.row(case(), judged=True))) == [
        ("vramfit_outcome", "fits"),
        ("vramfit_engine", "gpu"),
        ("vramfit_digest", SPEC.digest),
        ("vramfit_peak_allocated_bytes", 10 * GIB),
        ("vramfit_peak_reserved_bytes", 12 * GIB),
        ("vramfit_first_step_peak_allocated_bytes", 9 * GIB),
        ("vramfit_outside_allocator_bytes", 512 * MIB),
        ("vramfit_tokens_per_second", pytest.approx(4_096)),
        ("vramfit_seconds_per_10k_tokens", pytest.approx(10_000 / 4_096)),
        ("vramfit_joules_per_10k_tokens", pytest.approx(2_000 / 5_120 * 10_000)),
    ]


def test_figure_that_was_not_measured_has_no_property() -> None:
    row = results.row(
        case(with_memory(peak_reserved_bytes=None, outside_allocator_bytes=0)), judged=True
    )
    names = dict(junit.properties(row))
    assert "vramfit_peak_reserved_bytes" not in names
    assert names["vramfit_outside_allocator_bytes"] == 0


def test_out_of_memory_has_an_outcome_and_no_figures() -> None:
    assert list(junit.properties(results.row(case(RAN_OUT), judged=True))) == [
        ("vramfit_outcome", "oom"),
        ("vramfit_engine", "gpu"),
        ("vramfit_digest", SPEC.digest),
    ]
