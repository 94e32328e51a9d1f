"""Predicting a case without a device: the same step on ``meta`` tensors.

`trace` keeps the memory events of the step, with what the target's kernels would choose
(`dispatch`, `autocast`, `attention`) and allocate (`kernels`) put in; `allocator` replays them as
PyTorch's CUDA allocator would. `closed_forms` says it a second, independent way.
"""
