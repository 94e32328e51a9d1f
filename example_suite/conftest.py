"""What all tests of the suite share: criteria of your own, made from the measured case."""

import pytest


@pytest.fixture
def bytes_per_token(vramfit):
    """The peak of the step, shared out over the tokens that it trains on."""
    return vramfit.peak_allocated_bytes / vramfit.spec.tokens
