"""What is predicted again is not traced again."""

from __future__ import annotations

from dataclasses import replace

from measuring import LEAST
from tracing import CPU

from pytest_vramfit.estimating import estimate
from pytest_vramfit.estimating.run import trace


def test_a_trace_serves_its_case_with_any_capacity_and_without_its_phases(spec_of, monkeypatch):
    traced = []

    def counted(*args):
        traced.append(args)
        return trace(*args)

    monkeypatch.setattr(estimate, "trace", counted)
    it, spec = estimate.Estimator(), spec_of()
    with_eval = replace(LEAST, phases=("eval",))
    whole = it.estimate(spec, CPU, schedule=with_eval)
    assert it.estimate(spec, CPU, schedule=with_eval).phases == whole.phases
    assert it.estimate(spec, CPU, 2**20).memory == whole.memory
    assert len(traced) == 1
    it.estimate(spec, CPU, schedule=replace(with_eval, eval_batch=3))
    assert len(traced) == 2
    it.estimate(spec_of(seq=9), CPU)
    assert len(traced) == 3
