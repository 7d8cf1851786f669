from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from llm_pipeline.quantization.device_memory import OutOfMemory, out_of_memory_in, peak_bytes, placement, weight_bytes

GB = 10**9


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    with pytest.raises(OutOfMemory if expected else type(error)), out_of_memory_in("calibration"):
        raise error


def test_peaks_are_counted_on_the_host_too():
    assert peak_bytes()["peak_host_bytes"] > 50e6
    assert peak_bytes()["peak_device_bytes"] >= 0


@pytest.mark.parametrize(
    ("weights", "gpus", "expected"),
    [
        (16 * GB, {}, {}),
        (16 * GB, {0: 80 * GB}, {"device_map": {"": 0}}),
        (16 * GB, {0: 10 * GB, 1: 80 * GB}, {"device_map": {"": 1}}),
        (140 * GB, {0: 90 * GB, 1: 90 * GB}, {"device_map": "auto", "max_memory": {0: 72 * GB, 1: 72 * GB}}),
    ],
)
def test_a_model_goes_to_one_gpu_if_it_fits_then_to_all(weights, gpus, expected):
    assert placement(weights, gpus) == expected


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded():
    with pytest.raises(OutOfMemory, match=r"the weights take 140\.0 GB, and 80\.0 GB are free on 1 GPUs"):
        placement(140 * GB, {0: 80 * GB})


def test_the_bytes_of_the_weights_are_known_from_their_headers(source):
    assert weight_bytes(source, torch.float32) == 2 * weight_bytes(source, torch.bfloat16)
    assert weight_bytes(source, torch.bfloat16) == pytest.approx(
        (source / "model.safetensors").stat().st_size, rel=0.01
    )
