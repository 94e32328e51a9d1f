"""The parts of a peak: they sum to it, and each has the bytes that tensors of its kind have."""

from __future__ import annotations

import pytest
import torch
from tracing import CARD, block_bytes, one_thread  # noqa: F401

from pytest_vramfit.estimating.allocator_settings import AllocatorSettings
from pytest_vramfit.estimating.estimate import Estimator
from pytest_vramfit.estimating.replay import LEDGER, Replay, ledger
from pytest_vramfit.estimating.run import trace
from pytest_vramfit.estimating.traced import Action
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.training import adapters, model

DEFAULT = AllocatorSettings()
