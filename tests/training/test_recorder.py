"""The recorder counts each live storage once, in blocks of 512 bytes."""

from __future__ import annotations

import pytest
import torch

from pytest_vramfit.recorder import CeilingReachedError, Recorder


def test_sizes_are_rounded_up_to_blocks_of_512_bytes():
    with Recorder("cpu") as recorder:
        small = torch.zeros(1)
        large = torch.zeros(513, dtype=torch.uint8)
        assert recorder.live_bytes == 512 + 1024
    del small, large


def test_an_empty_tensor_counts_nothing():
    with Recorder("cpu") as recorder:
        empty = torch.zeros(0)
        assert recorder.live_bytes == 0
    del empty


def test_views_and_in_place_results_share_one_storage():
    with Recorder("cpu") as recorder:
        base = torch.zeros(256)
        views = [base.view(16, 16), base[3:], base.t(), base.detach(), base.add_(1)]
        assert recorder.live_bytes == 1024
        del base
        assert recorder.live_bytes == 1024  # the views keep the storage
        views.clear()
        assert recorder.live_bytes == 0


def test_what_autograd_saves_is_alive_until_backward():
    with Recorder("cpu") as recorder:
        weight = torch.zeros(128, requires_grad=True)
        loss = (weight.exp() * 2).sum()
        # the weight, the saved result of exp, the product is gone, the loss
        assert recorder.live_bytes == 512 + 512 + 512
        loss.backward()
        # the weight, its gradient, the loss
        assert recorder.live_bytes == 512 + 512 + 512


def test_the_peak_is_the_most_since_the_last_reset():
    with Recorder("cpu") as recorder:
        first = torch.zeros(1024)
        del first
        assert (recorder.peak_bytes, recorder.live_bytes) == (4096, 0)
        recorder.reset_peak()
        second = torch.zeros(256)
        assert recorder.peak_bytes == 1024
    del second


def test_only_the_asked_device_is_counted():
    with Recorder("meta") as recorder:
        here = torch.zeros(256)
        there = torch.zeros(256, device="meta")
        assert recorder.live_bytes == 1024
    del here, there


def test_more_than_the_ceiling_is_an_error_with_both_figures():
    with Recorder("cpu", ceiling_bytes=2048), pytest.raises(CeilingReachedError) as error:
        torch.zeros(1024)
    assert (error.value.live_bytes, error.value.ceiling_bytes) == (4096, 2048)
