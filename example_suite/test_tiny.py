"""Cases that the CPU runs in seconds: `pytest --vramfit=cpu test_tiny.py`."""

import pytest


@pytest.mark.fits_vram(model="tiny", rank=16, seq=128)
def test_qlora():
    """The default method: a 4-bit base, LoRA adapters on all linear modules."""


@pytest.mark.fits_vram(model="tiny", method="lora", targets="attention", seq=128)
def test_lora():
    """A 16-bit base, adapters on the attention only."""


@pytest.mark.fits_vram(model="tiny", method="full", seq=128, batch=2, accumulation=2)
def test_full():
    """Every parameter is trained: 16 bytes a parameter with AdamW."""


@pytest.mark.fits_vram(model="tiny", seq=128)
@pytest.mark.parametrize(
    "vramfit", [{"checkpointing": False}, {"checkpointing": True}], indirect=True
)
def test_checkpointing(vramfit):
    """A test may look at its case; its body runs when everything held."""
    assert vramfit.peak_allocated_bytes < 8 * 2**20


def test_checkpointing_saves_memory(vramfit):
    """Without a marker, a test measures what it compares."""
    plain = vramfit.measure(model="tiny", seq=256)
    checkpointed = vramfit.measure(model="tiny", seq=256, checkpointing=True)
    assert checkpointed.peak_allocated_bytes < 0.8 * plain.peak_allocated_bytes


@pytest.mark.fits_vram(model="tiny", seq=128)
def test_own_criterion(bytes_per_token):
    """A criterion of your own, from conftest.py."""
    assert bytes_per_token < 64 * 1024
