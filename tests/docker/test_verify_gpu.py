"""`docker/verify-gpu.sh`, with a double of `docker` that only writes down what it is asked, and may fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_pipeline.release.loading import load_release

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def run_script(tmp_path):
    programs, asked = tmp_path / "docker_double", tmp_path / "asked.jsonl"
    programs.mkdir()
    (programs / "docker").write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"with open({str(asked)!r}, 'a') as file: file.write(json.dumps(sys.argv[1:]) + chr(10))\n"
        "print('sha256:0123' if 'inspect' in sys.argv else '')\n"
        "raise SystemExit(int(os.environ.get('RELEASE_ENDS', 0)) if sys.argv[1] == 'run' else 0)\n"
    )
    (programs / "docker").chmod(0o755)

    def run(*options: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        command = [REPOSITORY / "docker" / "verify-gpu.sh", "--output", tmp_path / "out put", *options]
        environment = {**os.environ, **variables, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return done, [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []

    return run


def test_it_builds_the_images_and_makes_the_release_without_privileges(run_script, tmp_path):
    image = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:" + "a" * 64
    done, asked = run_script("--target", "h100", "--base", image, "--gpu", "1", HF_TOKEN="hf_secret")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    builds, (run,) = ([one for one in asked if one[0] == verb] for verb in ("build", "run"))
    assert [f"TRITON_IMAGE={image}" in build for build in builds] == [False, True, False]
    assert {"--read-only", "--cap-drop", f"{tmp_path / 'out put'}:/verification"} <= set(run)
    assert run[run.index("--gpus") + 1] == "device=1"
    assert not run[run.index("--user") + 1].startswith("0:")
    assert "hf_secret" not in json.dumps(asked)
    commands = [line.split()[1] for line in run[-1].splitlines() if line.strip().startswith("pipeline ")]
    assert commands == ["doctor", "plan", "run", "status"]
    assert asked[-1][:2] == ["rm", "--force"]


@pytest.mark.parametrize("target", ["h100", "l40s_vllm"])
def test_the_release_that_it_makes_is_of_the_asked_model_and_target_and_may_be_released(run_script, tmp_path, target):
    done, _ = run_script("--target", target, "--model", "a/model", "--revision", "v2", "--recipe", "none")
    assert "is a tag; give --base with its digest" in done.stderr
    release = load_release(tmp_path / "out put" / "configs" / "releases" / "verification.yaml").release
    assert (release.model.id, release.model.revision) == ("a/model", "v2")
    assert [recipe.name for recipe in release.recipes] == ["none"]
    assert release.target(target).runtime.kv_cache.free_memory_fraction == 0.25
    assert release.policy.accuracy.margin == release.policy.accuracy.task_margin == 0.05


def test_it_ends_as_the_release_does(run_script):
    done, _ = run_script("--target", "h100", RELEASE_ENDS="2")
    assert done.returncode == 2
    assert "verification.txt" in done.stdout


@pytest.mark.parametrize("options", [("--gpus", "all"), ("--gpu",), ("--target", "h1000")])
def test_it_refuses_what_it_does_not_know_before_it_builds_anything(run_script, options):
    done, asked = run_script(*options)
    assert (done.returncode, [one for one in asked if one != ["info"]]) == (4, [])
    assert options[0 if options[0] != "--target" else 1] in done.stderr
