"""The modelled allocator against PyTorch's own: the same requests, the same bytes.

    python tests/gpu/test_allocator_streams.py tests/data/allocator_streams.json

records the streams that tests/unit/test_allocator.py replays where there is no GPU. Every stream is
recorded in a process of its own, whose allocator has no history.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_vramfit.estimating.allocator import CachingAllocator, OutOfMemoryError
from pytest_vramfit.estimating.allocator_settings import AllocatorSettings

MIB = 2**20
STEPS = 1_000
ALLOWED_MIB = 301
"""Between two sums of segments, for PyTorch takes it as a share of the device's memory, of which
there is more than one figure: totalGlobalMem, or in older versions what cudaMemGetInfo says.
"""
BY_AGE_SINCE = "2.13"
"""From here on free blocks of one size are ordered by their segments' age, not by address:
https://github.com/pytorch/pytorch/pull/183591. Not seen in 2.12 and 2.13 themselves.
"""


def empty_cache() -> None:
    """A trace does not show it, but snapshots: one goes before it."""
    import torch

    torch.cuda.memory._snapshot()
    torch.cuda.empty_cache()


def mixed(largest_mib: int, *, emptied: bool = False) -> None:
    """Tensors of all sizes that come and go; not all of them, where memory is short."""
    import torch

    numbers = random.Random(largest_mib)
    held: list[torch.Tensor] = []
    for _ in range(STEPS):
        if held and numbers.random() < 0.47:
            held.pop(numbers.randrange(len(held)))
            continue
        largest = numbers.choice([4096, MIB, 10 * MIB, largest_mib * MIB])
        try:
            size = numbers.randrange(1, largest)
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            del held[: len(held) // 2]
        if emptied and numbers.random() < 0.02:
            empty_cache()


def training(*, emptied: bool = False) -> None:
    """Steps of a small network, of another batch size each."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(192, 4, 1000, batch_first=True)
    model = nn.Sequential(nn.Embedding(3000, 192), layer, nn.Linear(192, 3000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (1, 3, 2, 7, 5):
        ids = torch.randint(3000, (batch, 100), device="cuda")
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if emptied:
            empty_cache()


@dataclass(frozen=True, kw_only=True)
class Workload:
    run: Callable[[], None]
    settings: str = ""
    allowed_mib: int | None = None


WORKLOADS = {
    "mixed": Workload(run=lambda: mixed(50)),
    "mixed, emptied": Workload(run=lambda: mixed(40, emptied=True)),
    "mixed, short": Workload(run=lambda: mixed(45), allowed_mib=ALLOWED_MIB),
    "mixed, short, with garbage collection": Workload(
        run=lambda: mixed(46),
        settings="garbage_collection_threshold:0.6",
        allowed_mib=ALLOWED_MIB,
    ),
    "mixed, short, with oversize blocks": Workload(
        run=lambda: mixed(60), settings="max_split_size_mb:32", allowed_mib=ALLOWED_MIB
    ),
    "mixed, rounded": Workload(run=lambda: mixed(47), settings="roundup_power2_divisions:4"),
    "mixed, expandable, emptied": Workload(
        run=lambda: mixed(48, emptied=True), settings="expandable_segments:True"
    ),
    "mixed, expandable, short": Workload(
        run=lambda: mixed(49), settings="expandable_segments:True", allowed_mib=ALLOWED_MIB
    ),
    "training": Workload(run=training),
    "training, emptied": Workload(run=lambda: training(emptied=True)),
    "training, expandable": Workload(run=training, settings="expandable_segments:True"),
}


def record(name: str) -> dict[str, Any]:
    """Run a workload here and tell what PyTorch's allocator saw and said.

    In a trace the size of an allocation is what was requested; that of a failed one is rounded up
    to a block (``record_trace`` in c10/cuda/CUDACachingAllocator.cpp).
    """
    import torch

    workload = WORKLOADS[name]
    allowed_bytes = None
    if workload.allowed_mib is not None:
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        share = workload.allowed_mib * MIB / total_bytes
        torch.cuda.set_per_process_memory_fraction(share)
        allowed_bytes = workload.allowed_mib * MIB
    torch.cuda.memory._record_memory_history(context=None)
    assert torch.cuda.memory_reserved() == 0
    workload.run()
    gc.collect()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert len({one["stream"] for one in trace if one["action"] == "alloc"}) == 1
    statistics = torch.cuda.memory_stats()
    by_address = torch.__version__ < BY_AGE_SINCE
    segments = [one["addr"] for one in trace if one["action"] == "segment_alloc"]
    return {
        "name": name,
        "settings": workload.settings,
        "allowed_bytes": allowed_bytes,
        "addresses": segments if by_address else None,
        "events": list(events(trace)),
        "placed": [one["addr"] for one in trace if one["action"] == "alloc"],
        "expected": {
            "allocated": statistics["allocated_bytes.all.current"],
            "peak_allocated": statistics["allocated_bytes.all.peak"],
            "reserved": statistics["reserved_bytes.all.current"],
            "peak_reserved": statistics["reserved_bytes.all.peak"],
            "retries": statistics["num_alloc_retries"],
        },
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name(),
    }


def events(trace: Iterable[dict[str, Any]]) -> Iterable[tuple[str, int]]:
    """Requests, with bytes; frees, with the number of their request."""
    requests, living = 0, {}
    for one in trace:
        if one["action"] == "alloc":
            living[one["addr"]] = requests
            requests += 1
            yield "allocate", one["size"]
        elif one["action"] == "free_completed":
            yield "free", living.pop(one["addr"])
        elif one["action"] == "snapshot":
            yield "empty_cache", 0
        elif one["action"] == "oom":
            yield "out_of_memory", one["size"]


@functools.cache
def recorded(name: str) -> dict[str, Any]:
    """The stream of a workload, from a process of its own."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    if WORKLOADS[name].settings:
        environment |= dict.fromkeys(names, WORKLOADS[name].settings)
    run = subprocess.run(
        [sys.executable, __file__, "--one", name],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def replay(stream: dict[str, Any]) -> dict[str, int]:
    """What the model says of a stream. Every block must lie where it really lay, too."""
    model = CachingAllocator(
        AllocatorSettings.parse(stream["settings"]),
        allowed_bytes=stream["allowed_bytes"],
        addresses=stream["addresses"],
    )
    placed = iter(stream["placed"])
    requests = 0
    for action, number in stream["events"]:
        if action == "allocate":
            model.allocate(requests, number)
            address = next(placed)
            if stream["addresses"]:
                assert model._used[requests].address == address, f"request {requests}"
            requests += 1
        elif action == "free":
            model.free(number)
        elif action == "empty_cache":
            model.empty_cache()
        else:
            with pytest.raises(OutOfMemoryError):
                model.allocate(-1, number)
    return {
        "allocated": model.allocated_bytes,
        "peak_allocated": model.peak_allocated_bytes,
        "reserved": model.reserved_bytes,
        "peak_reserved": model.peak_reserved_bytes,
        "retries": model.retries,
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_model_says_what_pytorch_says(name: str) -> None:
    stream = recorded(name)
    assert replay(stream) == stream["expected"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_stream_shows_what_it_is_for(name: str) -> None:
    stream = recorded(name)
    actions = {action for action, _ in stream["events"]}
    short = WORKLOADS[name].allowed_mib is not None
    assert actions >= {"allocate", "free"}
    assert ("empty_cache" in actions) == ("emptied" in name)
    assert ("out_of_memory" in actions) == (stream["expected"]["retries"] > 0) == short
    # requested sizes, not those of blocks
    assert any(number % 512 for action, number in stream["events"] if action == "allocate")


def main(arguments: list[str]) -> None:
    if arguments[0] == "--one":
        print(json.dumps(record(arguments[1])))
        return
    streams = [recorded(name) for name in WORKLOADS]
    document = {
        "torch": streams[0]["torch"],
        "gpu": streams[0]["gpu"],
        "streams": [
            {key: value for key, value in stream.items() if key not in {"torch", "gpu", "placed"}}
            for stream in streams
        ],
    }
    Path(arguments[0]).write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
