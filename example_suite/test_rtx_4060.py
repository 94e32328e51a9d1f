"""What an 8 GB card yields: `pytest --gpu -s test_rtx_4060.py`.

The questions of a published study of an RTX 4060 (arXiv 2509.12229): Qwen2.5-1.5B, batch, length up
to 2,048 tokens, AdamW and paged AdamW, fp16 and bf16. A larger GPU passes for the card's memory:
what fits is the card's answer, tokens/s, time and energy are those of the GPU that does the work.
"""

import pytest

CARD = {"card": "RTX 4060 Laptop GPU", "model": "Qwen2.5-1.5B", "checkpointing": True}


@pytest.fixture
def line(vramfit, request):
    """Print a row of the study once the case was measured."""
    yield
    if vramfit.outcome == "fits":
        print(
            f"\n{request.node.name}: {vramfit.peak_reserved_bytes / 2**20:,.0f} MiB, "
            f"{vramfit.tokens_per_second:,.0f} tokens/s, "
            f"{vramfit.seconds_per_10k_tokens:.2f} s and "
            f"{vramfit.joules_per_10k_tokens:,.0f} J per 10k tokens"
        )


@pytest.mark.fits_vram(**CARD)
@pytest.mark.parametrize(
    "vramfit",
    [
        {"seq": 512, "batch": 1},
        {"seq": 512, "batch": 2},
        {"seq": 1024, "batch": 1},
        {"seq": 2048, "batch": 1},
    ],
    indirect=True,
)
def test_tokens(line):
    """2,048 tokens in a step are feasible in 8 GB."""


@pytest.mark.fits_vram(**CARD, seq=1024)
@pytest.mark.parametrize(
    "vramfit",
    [
        {"optimizer": optimizer, "precision": precision}
        for optimizer in ("adamw", "paged_adamw", "paged_adamw_8bit")
        for precision in ("fp16", "bf16")
    ],
    indirect=True,
)
def test_optimizer_and_precision(line):
    """Every one of them fits, too."""
