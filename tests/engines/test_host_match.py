"""What a host must have for a target, and for an engine that was built elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import TRITON_1_2_1 as IMAGE
from judging import gpu_target
from pretended_engine import engine_facts

from llm_pipeline.artifacts.engine_description import (
    EngineDescription,
    GpuFacts,
    HostFacts,
    driver_warning,
    engine_problems,
    read_host_facts,
    refuse_other_host,
    require_target_host,
    target_problems,
)
from llm_pipeline.base.errors import Transient, Unsupported
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

H100 = GpuFacts(name="NVIDIA H100 80GB HBM3", sm="sm90", memory_bytes=81559 * 2**20)
H200 = GpuFacts(name="NVIDIA H200", sm="sm90", memory_bytes=143771 * 2**20)
L40S = GpuFacts(name="NVIDIA L40S", sm="sm89", memory_bytes=46068 * 2**20)
TARGET = gpu_target(
    name="h100_tp2", accelerator_count=2, parallelism={"tensor": 2}, container=f"{IMAGE}@sha256:{'0' * 64}"
)


def host(*gpus: GpuFacts, driver: str = "590.44.01", container: str | None = None) -> HostFacts:
    return HostFacts(gpus=gpus, driver=driver, container=container)


def engine(built_on: HostFacts | None) -> EngineDescription:
    facts = engine_facts(device="")
    return EngineDescription(facts=facts, target=TARGET, host=built_on)


def test_a_host_with_the_targets_gpus_fits():
    assert target_problems(TARGET, host(H100, H100, H100, driver="595.10")) == ()


@pytest.mark.parametrize(
    ("here", "says"),
    [
        (host(H100), "2 GPUs are needed, 1 are visible"),
        (host(H100, L40S), "GPU 1 is NVIDIA L40S (sm89), H100-SXM5-80GB is sm90"),
        (
            host(H100, H100.model_copy(update={"memory_bytes": 40 * 2**30})),
            "GPU 1 is NVIDIA H100 80GB HBM3 with 40 GiB",
        ),
    ],
)
def test_a_host_that_is_not_what_the_target_describes_is_told_why(here: HostFacts, says: str):
    (problem,) = target_problems(TARGET, here)
    assert says in problem


def test_a_driver_older_than_the_containers_is_a_warning_for_data_centre_gpus_may_run_it():
    assert driver_warning(TARGET, host(H100, H100)) is None
    assert driver_warning(TARGET, host(H100, H100, driver="580.95.05")) is None  # minor versions of CUDA 13
    assert "driver 575.57.08 is older than 580, which" in (driver_warning(TARGET, host(H100, driver="575.57.08")) or "")
    assert driver_warning(TARGET.model_copy(update={"container": "own/image:1"}), host(H100, driver="1.0")) is None


@pytest.mark.parametrize(
    ("here", "says"),
    [
        (host(H100), "2 GPUs are needed, 1 are visible"),
        (host(H100, H200), "GPU 1 is NVIDIA H200 (sm90), it was built on NVIDIA H100 80GB HBM3 (sm90)"),
        (host(H100, H100, driver="580.1"), "driver 580.1 is older than the build's 590.44.01"),
        (host(H100, H100, container="other@sha256:2"), "the container is other@sha256:2, it was built in"),
    ],
)
def test_an_engine_is_not_loaded_on_another_host(here: HostFacts, says: str):
    built = host(H100, H100, container=f"{IMAGE}@sha256:1")
    (problem,) = engine_problems(engine(built), here)
    assert says in problem
    assert engine_problems(engine(built), host(H100, H100, driver="600.1")) == ()  # not in a container of ours


def test_an_engine_of_a_cpu_is_loaded_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse_other_host(engine(None))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A double of `nvidia-smi` that prints the given rows, in the recorded shape, or fails with them."""

    def install(*rows: str, exit_code: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        lines = "\n".join(rows)
        program.write_text(f"#!/bin/sh\ncat <<'ROWS'\n{lines}\nROWS\nexit {exit_code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return install


def test_the_facts_of_a_host_are_the_drivers(driver, monkeypatch: pytest.MonkeyPatch):
    driver("NVIDIA H100 80GB HBM3, 9.0, 81559, 590.44.01", "NVIDIA H200, 9.0, 143771, 590.44.01")
    monkeypatch.setenv(CONTAINER_VARIABLE, "image@sha256:1")
    assert read_host_facts() == host(H100, H200, container="image@sha256:1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert read_host_facts().gpus == (H200,)


@pytest.mark.parametrize(
    ("listed", "seen"),
    [("", ()), ("-1", ()), ("1,-1,0", (H200,)), ("2,0", ()), (" 1 , 0", (H200, H100)), ("GPU-8932f937", (H100, H200))],
)
def test_a_process_sees_the_gpus_that_cuda_shows_it(driver, monkeypatch: pytest.MonkeyPatch, listed, seen):
    """None for an empty list, and those before the first that there is none of; what UUIDs name is not known here."""
    driver("NVIDIA H100 80GB HBM3, 9.0, 81559, 590.44.01", "NVIDIA H200, 9.0, 143771, 590.44.01")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert read_host_facts().gpus == seen


def test_a_build_on_another_host_is_refused_before_it_starts(driver):
    driver("NVIDIA L40S, 8.9, 46068, 590.44.01", "NVIDIA L40S, 8.9, 46068, 590.44.01")
    with pytest.raises(Unsupported, match=r"this host is not a h100_tp2: GPU 0 is NVIDIA L40S \(sm89\)"):
        require_target_host(TARGET)
    with pytest.raises(Unsupported, match="was not built for this host: GPU 0 is NVIDIA L40S"):
        refuse_other_host(engine(host(H100, H100)))


def test_a_host_without_a_driver_or_with_a_broken_one_says_so(driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", exit_code=9)
    with pytest.raises(Transient, match="couldn't communicate"):
        read_host_facts()
    driver("No devices were found", exit_code=6)
    with pytest.raises(Unsupported, match="lists no GPU"):
        read_host_facts()
    driver("NVIDIA GB10, 12.1, [N/A], 590.44.01")
    with pytest.raises(Unsupported, match=r"\[N/A\] as the memory of NVIDIA GB10"):
        read_host_facts()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(Unsupported, match="no NVIDIA driver"):
        read_host_facts()
