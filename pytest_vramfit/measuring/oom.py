"""Which errors say that the device ran out of memory: PyTorch's own, and its known disguises."""

from __future__ import annotations

import re

_DISGUISES = (
    # cudaMalloc failed, and PyTorch could not ask NVML who has the memory, which it does for the
    # text of that error only (reportProcessMemoryInfo): under MIG, on Jetson, in some containers.
    # https://github.com/pytorch/pytorch/issues/112377, an error by its own name since
    # https://github.com/pytorch/pytorch/pull/185946
    r"NVML_SUCCESS == .* INTERNAL ASSERT FAILED at .*CUDACachingAllocator\.cpp",
    # an allocation beside PyTorch's allocator, such as the driver's for a kernel:
    # https://github.com/deepbeepmeep/Wan2GP/issues/1083, and with expandable segments
    # https://github.com/pytorch/pytorch/pull/112121
    r"CUDA (driver )?error: out of memory",
    # the same in a kernel that Triton loads (driver.c: "Triton Error [CUDA]: %s")
    r"Triton Error \[CUDA\]: out of memory",
    # WSL2 could not make an allocation resident (ENOMEM in the kernel's log); gone with a smaller
    # memory budget: https://github.com/microsoft/WSL/issues/41176
    r"CUDA driver error: device not ready",
    # "usually caused by a cudaMalloc() failure", as NVIDIA's manuals of both say:
    # https://github.com/deepspeedai/DeepSpeedExamples/issues/323
    # https://github.com/pytorch/pytorch/issues/20123
    r"CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
    # no memory for the handle: https://github.com/artidoro/qlora/issues/280
    r"CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate\(handle\)`",
)
_DISGUISE = re.compile("|".join(_DISGUISES))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory, not the machine's, did not suffice."""
    own = {f"{one.__module__}.{one.__name__}" for one in type(error).__mro__}
    if "torch.OutOfMemoryError" in own:
        return True
    return isinstance(error, RuntimeError) and _DISGUISE.search(str(error)) is not None
