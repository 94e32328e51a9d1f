"""An out-of-memory error by any of its names, and nothing else."""

from __future__ import annotations

import pynvml
import pytest
import torch

from pytest_vramfit.measuring.oom import is_out_of_memory

KERNEL_ERRORS = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace \
below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
OUT_OF_MEMORY = {
    "NVML under MIG, PyTorch 2.1": (
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/conda/conda-bld/pytorch_1695392020201/'
        'work/c10/cuda/CUDACachingAllocator.cpp":1154, please report a bug to PyTorch. '
    ),
    "NVML under MIG, PyTorch 2.11": (
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp"'
        ":1165, please report a bug to PyTorch. "
    ),
    "NVML that does not know the device": (
        "NVML_SUCCESS == DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device)"
        ' INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":806, please report a '
        "bug to PyTorch. "
    ),
    "beside the allocator": f"CUDA error: out of memory{KERNEL_ERRORS}",
    "beside the allocator, PyTorch 2.10": (
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia."
        "com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
        f"{KERNEL_ERRORS}"
    ),
    "expandable segments": "CUDA driver error: out of memory",
    "a kernel of Triton's": "Triton Error [CUDA]: out of memory",
    "WSL2": "CUDA driver error: device not ready",
    "cuBLAS": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuBLAS's handle": (
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    ),
    "cuDNN": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
}
SOMETHING_ELSE = {
    "illegal access": f"CUDA error: an illegal memory access was encountered{KERNEL_ERRORS}",
    "assertion": f"CUDA error: device-side assert triggered{KERNEL_ERRORS}",
    "launch": (
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, "
        "m, n, k, &falpha, a, CUDA_R_16BF, lda, b, CUDA_R_16BF, ldb, &fbeta, c, CUDA_R_16BF, ldc, "
        "CUDA_R_32F, CUBLAS_GEMM_DFALT_TENSOR_OP)`"
    ),
    "another call of cuBLAS": (
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm( handle, opa, opb, m, "
        "n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`"
    ),
    "cuDNN of another version": "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    # https://github.com/pytorch/pytorch/issues/85796
    "an event that was asked too early": f"CUDA error: device not ready{KERNEL_ERRORS}",
    "another assertion of the allocator": (
        '!handles_.at(i) INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp"'
        ":427, please report a bug to PyTorch. "
    ),
    "the machine's memory": (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "shared memory of a kernel": (
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block "
        "sizes or `num_stages` may help."
    ),
}


@pytest.mark.parametrize("text", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError])
def test_disguise_is_seen_through(kind: type[Exception], text: str) -> None:
    assert is_out_of_memory(kind(text))


@pytest.mark.parametrize("text", SOMETHING_ELSE.values(), ids=SOMETHING_ELSE)
def test_another_error_is_none(text: str) -> None:
    assert not is_out_of_memory(RuntimeError(text))


def test_pytorchs_own_error_is_known_by_its_type() -> None:
    """Whatever it says."""
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB."))
    assert is_out_of_memory(torch.OutOfMemoryError())


def test_the_real_errors_of_this_machine_are_none() -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(2**60, dtype=torch.uint8)
    assert not is_out_of_memory(of_torch.value)
    assert not is_out_of_memory(MemoryError("CUDA error: out of memory"))
    mismatch = pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert not is_out_of_memory(mismatch)
