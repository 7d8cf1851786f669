from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

from transformers import LlamaModel

from llm_pipeline.base.errors import Terminal
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe
from llm_pipeline.quantization import device_memory, modelopt_quantizer
from llm_pipeline.quantization.calibration import read_calibration
from llm_pipeline.quantization.device_memory import (
    CPU_BATCH,
    OutOfMemory,
    Placement,
    Shortage,
    choose_batch,
    fitting_batch,
    is_out_of_memory,
    peak_bytes,
    place,
    sequence_bytes,
    shortage,
    weight_bytes,
)
from llm_pipeline.quantization.modelopt_quantizer import Quantizer

torch.set_num_threads(1)

DATA = Path(__file__).parents[2] / "configs/calibration/demo.jsonl"
GB = 10**9
REFUSED = (
    "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.02 GiB is free."
)


@pytest.fixture
def quantizer(source, tmp_path):
    calibration = Calibration(
        sources=("calibration/demo.jsonl",), samples=16, maximum_tokens=8, batch_size=8, packing=True
    )
    recipe = QuantizationRecipe(name="fp8", weights="fp8", calibration=calibration)
    data = read_calibration(source, recipe, DATA)
    return Quantizer(source, recipe, data, dtype=torch.bfloat16, device="cpu", work=tmp_path)


@pytest.fixture
def memory_for(monkeypatch):
    """Forward passes of more sequences than this fail as they do on a GPU; the sizes that were tried are returned."""

    def limit(most, error=torch.OutOfMemoryError):
        tried, plain = [], LlamaModel.forward

        def forward(self, input_ids=None, **options):
            tried.append(len(input_ids))
            if len(input_ids) > most:
                raise error(REFUSED)
            return plain(self, input_ids=input_ids, **options)

        monkeypatch.setattr(LlamaModel, "forward", forward)
        return tried

    return limit


def test_a_batch_that_does_not_fit_is_tried_once_more_at_half_its_size(quantizer, memory_for, tmp_path):
    tried = memory_for(4)
    quantizer.calibrate(tmp_path / "state")
    assert tried[:2] == [8, 4]
    assert max(tried[1:]) == 4
    assert quantizer.facts["calibration_batch"] == 4
    quantizer.export(tmp_path / "export", tmp_path / "state")


def test_after_the_second_failure_the_error_says_what_would_fit(quantizer, memory_for, tmp_path):
    tried = memory_for(0)
    with pytest.raises(OutOfMemory, match=r"out of memory in calibration at 4 x 8 tokens.* would fit") as failure:
        quantizer.calibrate(tmp_path / "state")
    assert tried == [8, 4]
    assert isinstance(failure.value, Terminal)
    assert "GB free" in failure.value.message
    assert "calibration.batch_size" in failure.value.hint
    assert not (tmp_path / "state").exists()


def test_what_fits_follows_from_the_measure_of_one_sequence(quantizer, memory_for, tmp_path, monkeypatch):
    monkeypatch.setattr(modelopt_quantizer, "sequence_bytes", lambda *_: {torch.device("cpu"): 100 * GB})
    memory_for(0)
    with pytest.raises(OutOfMemory, match=r"4 x 8 tokens.*: 600.0 GB or more needed"):
        quantizer.calibrate(tmp_path / "state")


def test_another_error_is_not_taken_for_it(quantizer, memory_for, tmp_path):
    def other(_message):
        return RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    tried = memory_for(4, other)
    with pytest.raises(RuntimeError, match="mat1"):
        quantizer.calibrate(tmp_path / "state")
    assert tried == [8]


def test_an_export_that_does_not_fit_says_so(quantizer, tmp_path, monkeypatch):
    quantizer.calibrate(tmp_path / "state")

    def export(*_arguments, **_options):
        raise torch.OutOfMemoryError(REFUSED)

    monkeypatch.setattr(modelopt_quantizer, "export_hf_checkpoint", export)
    with pytest.raises(OutOfMemory, match="out of memory in export"):
        quantizer.export(tmp_path / "export", tmp_path / "state")
    assert not (tmp_path / "export").exists()


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
    assert is_out_of_memory(error) is expected


def test_the_numbers_of_a_failure_are_read_from_it():
    found = shortage(torch.OutOfMemoryError(REFUSED), 8, 512, free=2 * GB, allocated=0)
    assert found.needed_bytes == 3 * 2**30
    assert found.fitting_batch == 3
    assert "3.2 GB or more needed, 2.0 GB free beside the weights; 3 x 512 tokens would fit" in found.error("x").message


def test_a_pass_that_failed_early_is_judged_by_what_one_sequence_needs():
    """On an H200, 64 sequences had taken 2.7 GB when they failed; 38, which that seems to allow, failed as well."""
    refused = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.51 GiB. GPU 0 has ...")
    assert shortage(refused, 64, 512, free=int(2.3 * GB), allocated=0).fitting_batch == 38
    found = shortage(refused, 64, 512, free=int(2.3 * GB), allocated=0, sequence=61e6)
    assert found.fitting_batch == 26
    assert found.fitting_batch * 61e6 < found.free_bytes


def test_where_not_even_one_sequence_fits_shorter_ones_are_named():
    error = Shortage(batch=1, tokens=4096, needed_bytes=8 * GB, free_bytes=4 * GB).error("calibration")
    assert "1 x 1433 tokens would fit" in error.message
    assert "maximum_tokens: 1433" in error.hint


def test_the_batch_follows_from_free_memory_and_one_sequence():
    assert fitting_batch(free=100 * GB, one=GB, growth=2.0) == 35
    assert fitting_batch(free=GB, one=GB, growth=2.0) == 0


def test_on_a_cpu_the_batch_is_fixed_and_no_larger_than_the_data():
    assert sequence_bytes(lambda: None, [torch.device("cpu")]) == {}
    assert choose_batch({}, 1.0, 512, 1000) == CPU_BATCH
    assert choose_batch({}, 1.0, 512, 7) == 7


def test_on_gpus_the_one_with_the_least_room_for_its_part_decides(monkeypatch):
    free = {torch.device("cuda", 0): 80 * GB, torch.device("cuda", 1): 20 * GB}
    monkeypatch.setattr(device_memory, "free_bytes", free.__getitem__)
    assert choose_batch(dict.fromkeys(free, GB), 2.0, 512, 1000) == 7
    assert choose_batch(dict.fromkeys(free, GB), 2.0, 8192, 1000) == 4
    assert choose_batch(dict.fromkeys(free, 100 * GB), 2.0, 512, 1000) == 1


def test_peaks_are_counted_on_the_host_too():
    assert peak_bytes()["peak_host_bytes"] > 50e6
    assert peak_bytes()["peak_device_bytes"] >= 0


@pytest.mark.parametrize(
    ("weights", "gpus", "expected"),
    [
        (16 * GB, {}, Placement()),
        (16 * GB, {0: 80 * GB}, Placement({"": 0})),
        (16 * GB, {0: 10 * GB, 1: 80 * GB}, Placement({"": 1})),
        (140 * GB, {0: 90 * GB, 1: 90 * GB}, Placement("auto", {0: 72 * GB, 1: 72 * GB, "cpu": 80 * GB})),
        (140 * GB, {0: 80 * GB}, Placement("auto", {0: 64 * GB, "cpu": 80 * GB}, offloads=True)),
    ],
)
def test_a_model_goes_to_one_gpu_if_it_fits_then_to_all_then_to_the_host(weights, gpus, expected):
    assert place(weights, gpus, free_host=100 * GB) == expected


def test_the_bytes_of_the_weights_are_known_from_their_headers(source):
    assert weight_bytes(source, torch.float32) == 2 * weight_bytes(source, torch.bfloat16)
    assert weight_bytes(source, torch.bfloat16) == pytest.approx(
        (source / "model.safetensors").stat().st_size, rel=0.01
    )
