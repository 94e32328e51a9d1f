"""Measure the matrix of cases on this GPU and write it to tests/data/h200_matrix.json.

    python tests/gpu/matrix.py [FILE]

What FILE has already is kept, so that a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.measurement import Measurement
from pytest_vramfit.worker.client import Worker
from pytest_vramfit.worker.protocol import Measured, Request

FILE = Path(__file__).parents[1] / "data" / "h200_matrix.json"
SCHEDULE = {"warmup": 2, "steps": 2}

Keywords = dict[str, Any]


def cases() -> Iterator[Keywords]:
    """The keywords of every case."""
    yield from _architectures()
    yield from _sizes()
    yield from _numerics()
    yield from _adapters()


def _architectures() -> Iterator[Keywords]:
    """Each in all three methods, with another size for each."""
    small = ("Qwen2.5-0.5B", "Qwen3-0.6B", "Llama-3.2-1B", "Gemma-3-1B", "gpt2-medium", "OPT-1.3b")
    for model in (*small, "SmolLM2-1.7B", "TinyLlama-1.1B", "deepseek-coder-1.3b"):
        yield {"model": model}
        yield {"model": model, "method": "lora", "seq": 1024, "checkpointing": True}
        yield {"model": model, "method": "full", "batch": 2, "seq": 256}
    for model in ("Mistral-7B-v0.3", "Phi-3-mini-4k", "Qwen3-4B"):
        yield {"model": model, "seq": 1024}
        yield {"model": model, "method": "lora", "batch": 4, "seq": 256, "targets": "qv"}
    yield {"model": "Gemma-2-2B", "attention": "eager"}
    yield {"model": "Gemma-2-2B", "attention": "eager", "method": "lora", "checkpointing": True}
    for model in ("Qwen3-30B-A3B", "gpt-oss-20b"):  # mixtures of experts
        yield {"model": model, "method": "lora", "targets": "attention", "attention": "eager"}


def _sizes() -> Iterator[Keywords]:
    """Batch 1 to 8, 256 to 8,192 tokens, accumulation."""
    model = "Qwen2.5-1.5B"
    for batch in (2, 4, 8):
        yield {"model": model, "batch": batch}
        yield {"model": model, "batch": batch, "method": "lora", "seq": 256}
    for seq in (2048, 4096, 8192):
        yield {"model": model, "seq": seq}
        yield {"model": model, "seq": seq, "checkpointing": True}
    yield {"model": model, "accumulation": 4}
    yield {"model": model, "accumulation": 2, "method": "full", "checkpointing": True}
    yield {"model": "Qwen2.5-7B"}
    yield {"model": "Qwen2.5-7B", "seq": 2048, "checkpointing": True}
    yield {"model": "Qwen2.5-7B", "method": "lora", "batch": 2, "checkpointing": "reentrant"}
    yield {"model": "Qwen2.5-14B", "checkpointing": True}


def _numerics() -> Iterator[Keywords]:
    """All optimizers and precisions, attention, checkpointing."""
    model = "Qwen2.5-0.5B"
    for optimizer in (
        "adamw_fused",
        "adamw_8bit",
        "paged_adamw",
        "paged_adamw_8bit",
        "sgd",
        "adafactor",
    ):
        yield {"model": model, "method": "full", "optimizer": optimizer}
        yield {"model": "Qwen2.5-1.5B", "optimizer": optimizer}
    for method in ("qlora", "lora", "full"):
        yield {"model": model, "method": method, "precision": "fp16"}
        yield {"model": model, "method": method, "precision": "fp32"}
        yield {"model": model, "method": method, "autocast": False}
        yield {"model": model, "method": method, "attention": "eager", "seq": 1024}
        yield {"model": model, "method": method, "checkpointing": "reentrant", "seq": 1024}


def _adapters() -> Iterator[Keywords]:
    """Quantisations and kinds of adapters."""
    model = "Qwen2.5-1.5B"
    for extra in (
        {"quant": "fp4"},
        {"quant": "int8"},
        {"double_quant": False},
        {"kbit_upcast": False},
        {"dora": True},
        {"dora": True, "method": "lora", "checkpointing": True},
        {"rank": 64, "rslora": True},
        {"adapter_dtype": "bf16"},
        {"modules_to_save": ["lm_head"]},
        {"method": "lora", "modules_to_save": ["embed_tokens"]},
        {"targets": "attention"},
        {"dropout": 0.0},
        {"alloc_conf": "expandable_segments:True"},
        {"phases": ["eval", "save", "merge"], "eval_batch": 2},
    ):
        yield {"model": model, **extra}


def row(keywords: Keywords, measurement: Measurement) -> dict[str, Any]:
    """What is kept of a case."""
    memory, oom = measurement.memory, measurement.oom
    return {
        "keywords": keywords,
        "oom": oom and oom.phase,
        "memory": memory
        and {
            "load": memory.load_peak_bytes,
            "first_step": memory.first_step_peak_allocated_bytes,
            "forward": memory.forward_peak_bytes,
            "backward": memory.backward_peak_bytes,
            "optimizer": memory.optimizer_peak_bytes,
            "after_step": memory.allocated_after_step_bytes[-1],
            "reserved": memory.peak_reserved_bytes,
            "outside": memory.outside_allocator_bytes,
            "managed": memory.managed_bytes,
        },
        "phases": {name: one.peak_bytes for name, one in measurement.phases.items()},
        "step_ns": measurement.median_step_ns,
        "gpu_ns": measurement.median_gpu_ns,
        "kernels": measurement.gpu and measurement.gpu.kernels,
    }


def main(file: Path) -> int:
    """Measure what ``file`` does not have yet; the number of cases that could not be measured."""
    document = json.loads(file.read_text()) if file.exists() else {"environment": {}, "rows": []}
    known = [one["keywords"] for one in document["rows"]]
    failed = 0
    worker = Worker("gpu")
    try:
        for keywords in (one for one in cases() if one not in known):
            claim = read_claim([{**keywords, **SCHEDULE}], rootdir=Path())
            reply = worker.measure(
                Request(spec=claim.spec, schedule=claim.schedule), lambda _: None
            )
            if not isinstance(reply, Measured):
                print(f"{keywords}: {reply.outcome}: {reply.says}\n{reply.output}")
                failed += 1
                continue
            document["environment"] = dict(reply.measurement.environment)
            document["rows"].append(row(keywords, reply.measurement))
            file.write_text(json.dumps(document, indent=1) + "\n")
            print(keywords, reply.measurement.memory and reply.measurement.memory.phases)
    finally:
        worker.stop()
    print(f"{len(document['rows'])} cases, {failed} could not be measured")
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE) > 0)
