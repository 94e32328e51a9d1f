"""Four sizes of Qwen2.5, checkpointing off and on: `pytest --gpu test_qwen_ladder.py`.

Needs no download: the weights are random, their bytes are those of the real ones.
"""

import pytest

LADDER = [
    {"model": model, "checkpointing": checkpointing}
    for model in ("Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-14B")
    for checkpointing in (False, True)
]


@pytest.mark.fits_vram(rank=16, seq=512)
@pytest.mark.parametrize("vramfit", LADDER, indirect=True)
def test_ladder():
    """QLoRA at 512 tokens fits this machine's card."""
