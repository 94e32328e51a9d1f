"""Whose the bytes of a step's peak are, from the storages that live in it."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import torch

from pytest_vramfit.accumulation import is_in_place, sole_owners
from pytest_vramfit.events import LEDGER, Action, block_bytes, part_of
from pytest_vramfit.measurement import Memory
from pytest_vramfit.recorder import Journal
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.step import Step


def take_ledger(step: Step, device: torch.device, memory: Memory) -> dict[str, int]:
    """One more step, each storage of which is followed from its making to its end.

    The parts of what lives where that is most in the phase that had the peak, in bytes, and with
    ``workspace`` the rest of the peak, which PyTorch's operations do not show: what kernels take
    for their own time, what libraries keep, and the allocator's rounding.
    """
    journal = (_GpuJournal if device.type == "cuda" else Journal)(device.type)
    journal.follow(step)
    living = {
        **adapters.parts(step.model),
        "quantisation": model.quantisation_tensors(step.model),
        "optimizer": step.optimizer_states(),
    }
    for part, tensors in living.items():
        for tensor in tensors:
            journal.count_all(tensor, part)
            journal.assign(part, (tensor,))
    with journal:
        step.run(_AssigningGradients(journal, step))
    passes = {name: peak for name, peak in memory.phases.items() if name != "load"}
    parts = _at_most(journal, max(passes, key=passes.__getitem__), step.vocabulary)
    rest = memory.peak_allocated_bytes - parts.total()
    # with gradients of several micro-batches a journal sees more than there is without it: autograd
    # adds them in place only where nobody looks on
    for part in ("gradients", "activations"):
        surplus = min(parts[part], max(0, -rest))
        parts[part] -= surplus
        rest += surplus
    parts["workspace"] += rest
    return {name: parts[name] for name in LEDGER}


class _GpuJournal(Journal):
    """A journal under which autograd adds up gradients in place, as it does without.

    On a CPU the engine measures under a mode, too.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__(device_type)
        self._sole = sole_owners()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, or what it is where nobody looks on."""
        if self.phase() == "backward" and is_in_place(func, args, self._sole):
            return args[0].add_(args[1])
        return super().__torch_dispatch__(func, types, args, kwargs)


class _AssigningGradients:
    """The step's meter, which is asked after each pass."""

    def __init__(self, journal: Journal, step: Step) -> None:
        self._journal = journal
        self._step = step

    def reset_peak(self) -> None:
        pass

    def peak_allocated_bytes(self) -> int:
        gradients = (one.grad for one in self._step.trainable.values())
        self._journal.assign("gradients", (one for one in gradients if one is not None))
        return 0


def _at_most(journal: Journal, phase: str, vocabulary: int) -> Counter[str]:
    """The bytes of each part when most of them live in that phase."""
    sizes = {
        number: block_bytes(size_bytes)
        for action, number, size_bytes in journal.events
        if action is Action.ALLOCATE
    }
    changes = (
        sizes[number] if action is Action.ALLOCATE else -sizes[number]
        for action, number, _ in journal.events
    )
    totals = list(accumulate(changes))
    in_phase = (
        index
        for index, (action, number, _) in enumerate(journal.events)
        if action is Action.ALLOCATE and journal.blocks[number].phase == phase
    )
    until = max(in_phase, key=totals.__getitem__) + 1
    gone = {number for action, number, _ in journal.events[:until] if action is Action.FREE}
    parts: Counter[str] = Counter()
    for action, number, _ in journal.events[:until]:
        if action is Action.ALLOCATE and number not in gone:
            parts[part_of(journal.blocks[number], vocabulary)] += sizes[number]
    return parts
