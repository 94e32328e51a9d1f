"""One step, again and again, with extra work on the GPU or on the host; prints samples as JSON.

Run by test_clocks.py in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.measurement import median
from pytest_vramfit.measuring import driver
from pytest_vramfit.measuring.cuda import CudaBench
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.step import Step

SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)
TRIALS = 20
STEPS_IN_TRIAL = 2
SIZE = 1024


def main(keywords: dict[str, object]) -> None:
    spec = read_claim([keywords], rootdir=Path()).spec
    bench = CudaBench(driver.visible()[0], after_others=True)
    bench.begin(None)
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    base = model.build(outline, spec, bench.torch_device)
    step = Step(adapters.prepare(base, spec, adapted), spec, bench.torch_device)
    one = torch.ones(SIZE, SIZE, device=bench.torch_device, dtype=torch.bfloat16)
    out = torch.empty_like(one)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(one, one, out=out)

    def gpu_ns(run: Callable[[], object]) -> int:
        work = bench.gpu_work(run)
        assert work is not None
        return work[0]

    def with_products(count: int) -> int:
        def run() -> None:
            step.run(bench)
            products(count)

        return gpu_ns(run)

    def with_sleep(seconds: float) -> int:
        begin = time.perf_counter_ns()
        time.sleep(seconds)
        step.run(bench)
        bench.synchronize()
        return time.perf_counter_ns() - begin

    for _ in range(4):
        step.run(bench)
    gpu_ns(lambda: products(10))
    product_ns = gpu_ns(lambda: products(1000)) / 1000
    base_ns = median([with_products(0) for _ in range(5)])
    trials = {
        str(slowdown): [
            [with_products(round(slowdown * base_ns / product_ns)) for _ in range(STEPS_IN_TRIAL)]
            for _ in range(TRIALS)
        ]
        for slowdown in SLOWDOWNS
    }
    plain = [with_sleep(0) for _ in range(5)]
    asleep = [with_sleep(2.5 * median(plain) / 1e9) for _ in range(5)]
    found = {"base_ns": base_ns, "trials": trials, "plain_ns": plain, "asleep_ns": asleep}
    print("SAMPLES", json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
