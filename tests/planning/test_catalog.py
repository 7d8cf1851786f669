from __future__ import annotations

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.tables import (
    containers,
    families,
    find_container,
    find_family,
    find_gpu,
    find_support,
    gpus,
    runtime_releases,
)


def test_every_gpu_has_memory_and_an_architecture():
    assert len(gpus()) >= 12
    for gpu in gpus().values():
        assert gpu.sm.startswith("sm")
        assert 10e9 < gpu.usable_bytes < 300e9


def test_usable_memory_is_what_the_driver_reports_where_that_is_known():
    assert find_gpu("L40S").usable_bytes == 46068 * 2**20
    assert find_gpu("H200-SXM-141GB").usable_bytes == 139 * 2**30


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("A10", 24.15), ("L4", 24.15), ("B300-SXM-288GB", 288.4), ("GB300", 298.0), ("H20-96GB", 102.6), ("L40", 48.3)],
)
def test_usable_memory_of_more_gpus_is_what_the_driver_reports(name: str, gigabytes: float):
    assert find_gpu(name).usable_bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_the_second_blackwell_generation_shares_the_rows_of_the_first():
    assert find_gpu("B300-SXM-288GB").sm == find_gpu("GB300").sm == "sm103"
    assert find_support("sm103", "nvfp4", "pytorch_main") == find_support("sm100", "nvfp4", "pytorch_main")


def test_nvfp4_on_hopper_and_ada_is_partial_in_main_only():
    for sm in ("sm89", "sm90"):
        assert find_support(sm, "nvfp4", "pytorch_main").value == "partial"
        assert find_support(sm, "nvfp4", "pytorch_1_2").value == "no"


def test_usable_memory_is_below_the_nominal_size_where_nothing_was_measured():
    gpu = find_gpu("A100-SXM4-40GB")
    assert gpu.usable_bytes < gpu.memory_gib * 2**30


@pytest.mark.parametrize(
    ("asked", "near"),
    [("H100", "H100-SXM5-80GB"), ("h200", "H200-SXM-141GB"), ("l40", "L40S"), ("A100-80GB", "A100-SXM4-80GB")],
)
def test_an_unknown_gpu_is_refused_with_the_nearest_names(asked: str, near: str):
    with pytest.raises(ConfigError, match=f"unknown accelerator '{asked}'") as caught:
        find_gpu(asked)
    assert near in caught.value.hint
    assert "B200" not in caught.value.hint


def test_containers_name_the_version_inside():
    inside = {container.image: container.tensorrt_llm for container in containers()}
    assert inside["nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"] == "1.2.1"
    assert inside["nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"] == "1.1.0"


def test_a_container_is_found_by_its_tag_whatever_its_registry_and_digest():
    container = find_container(f"registry.example.com/m/tritonserver:26.07-trtllm-python-py3@sha256:{'0' * 64}")
    assert container is not None
    assert (container.tensorrt, container.cuda, container.python) == ("10.14.1.48", "13.1.0.036", "3.12.3")
    assert find_container("nvcr.io/nvidia/tritonserver:27.99-trtllm-python-py3") is None


@pytest.mark.parametrize(("tag", "built_for", "oldest"), [("26.07", "590.44.01", "580"), ("25.10", "575.57.08", "525")])
def test_a_container_runs_on_drivers_of_its_cuda_major_version(tag: str, built_for: str, oldest: str):
    container = find_container(f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3")
    assert container is not None
    assert (container.driver, container.oldest_driver) == (built_for, oldest)


def test_every_serving_container_since_1_0_says_what_is_inside():
    served = [one for one in containers() if "tritonserver" in one.image and one.tensorrt_llm.startswith("1.")]
    assert len(served) == 11
    for container in served:
        facts = (container.tensorrt, container.cuda, container.driver, container.python, container.size_gb)
        assert None not in facts


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "LLaMA"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "LLaMA"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "LLaMA 4"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen-2/2.5"),
        ("Qwen/Qwen3-8B", "Qwen-3"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1"),
        ("acme/support-bot", None),
    ],
)
def test_models_belong_to_the_family_of_their_name(model: str, family: str | None):
    assert find_family(model) == family
    assert family is None or family in families()


def test_a_family_belongs_to_itself():
    assert tuple(find_family(family) for family in families()) == families()


def test_only_releases_before_1_3_rc16_have_the_engine_path():
    have = {release.version: release.has_engine_path for release in runtime_releases()}
    assert have["1.2.1"]
    assert have["1.3.0rc15"]
    assert not have["1.3.0rc22"]


def test_a_cell_that_the_matrix_lacks_is_unknown_and_says_so():
    cell = find_support("sm90", "int4_wo", "pytorch_1_2")
    assert cell.value == "unknown"
    assert "no entry for int4_wo on sm90" in cell.why
