"""After a trace, and after one that broke off, PyTorch and the libraries are as they were."""

from __future__ import annotations

import gc
from pkgutil import resolve_name

import bitsandbytes.functional
import pytest
import torch
from measuring import LEAST, measured
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from tracing import CARD, CPU, one_thread  # noqa: F401
from transformers.models.gpt2 import modeling_gpt2  # noqa: F401 (it has one of what is replaced)

from pytest_vramfit.estimating import after_steps, dispatch, run
from pytest_vramfit.estimating.run import trace
from pytest_vramfit.estimating.step import TracedStep
from pytest_vramfit.estimating.trace import Trace

# of every merged weight
pytestmark = pytest.mark.filterwarnings("ignore:Merge lora module to 4-bit linear:UserWarning")

LEAST_PATCHED = {
    "bitsandbytes.functional.get_paged",
    "torch.clear_autocast_cache",
    "torch.cuda.empty_cache",
    "torch.cuda.is_available",
    "transformers.masking_utils.find_packed_sequence_indices",
    "transformers.models.gpt2.modeling_gpt2.maybe_autocast",
}


class BreaksOffError(Exception):
    """What breaks a trace off."""


@pytest.fixture
def patched(monkeypatch):
    """What a trace replaces, by name: what it was before."""
    before = {}

    for module in (after_steps, dispatch, run):
        patch = module.patch

        def noting(name, answer, patch=patch):
            before.setdefault(name, resolve_name(name))
            return patch(name, answer)

        monkeypatch.setattr(module, "patch", noting)
    return before


def state():
    """PyTorch's own that a trace has to do with."""
    kinds = ("cpu", "cuda")
    return {
        "function modes": _get_current_function_mode_stack(),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "autocast": [torch.is_autocast_enabled(one) for one in kinds],
        "autocast's types": [torch.get_autocast_dtype(one) for one in kinds],
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "gradients": torch.is_grad_enabled(),
        "device": torch.get_default_device(),
        "type": torch.get_default_dtype(),
        "saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
    }


def assert_original(patched):
    assert [name for name, one in patched.items() if resolve_name(name) is not one] == []


CASES = [
    {"optimizer": "paged_adamw", "checkpointing": "reentrant"},
    {"method": "full", "precision": "fp16", "checkpointing": True},
]


@pytest.mark.parametrize("target", [CPU, CARD], ids=["CPU", "card"])
@pytest.mark.parametrize("keywords", CASES, ids=str)
def test_a_trace_leaves_everything_as_it_was(keywords, target, spec_of, patched):
    before = state()
    trace(spec_of(**keywords), target, ("eval", "save"), 2)
    assert state() == before
    assert bitsandbytes.functional.name2qmap == {}
    assert patched.keys() >= LEAST_PATCHED
    assert_original(patched)


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("load", 1),
        ("load", 200),
        ("forward", 60),
        ("backward", 60),
        ("optimizer", 10),
        ("merge", 20),
    ],
)
def test_so_does_one_that_breaks_off(phase, number, spec_of, patched, monkeypatch):
    """At an allocation of that phase; backward is in the midst of recomputing a layer."""
    spec = spec_of(checkpointing=True)
    born = Trace.born
    seen = []

    def breaking_off(self, *args):
        born(self, *args)
        seen.append(self.phase())
        if seen.count(phase) == number:
            raise BreaksOffError

    monkeypatch.setattr(Trace, "born", breaking_off)
    before = state()
    with pytest.raises(BreaksOffError):
        trace(spec, CARD, ("merge",))
    assert patched
    assert state() == before
    assert bitsandbytes.functional.name2qmap == {}
    assert_original(patched)


def test_what_is_measured_afterwards_has_the_bytes_of_before(spec_of, monkeypatch):
    spec = spec_of(optimizer="adamw_8bit", checkpointing=True)
    before = measured(spec, LEAST).memory
    trace(spec, CARD)
    trace(spec, CPU)
    monkeypatch.setattr(run.adapters, "parts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trace(spec, CARD)
    monkeypatch.undo()
    assert measured(spec, LEAST).memory == before


def test_what_is_traced_after_measuring_has_the_events_of_before(spec_of):
    spec = spec_of(optimizer="adamw_8bit")
    before = trace(spec, CARD)
    measured(spec, LEAST)
    assert trace(spec, CARD) == before


@pytest.mark.parametrize("target", [CPU, CARD], ids=["cpu", "card"])
def test_no_model_stays_in_memory(target, spec_of):
    """Of each there were some: a recorder is kept by what it follows until that has gone."""
    trace(spec_of(), target)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, TracedStep)]
