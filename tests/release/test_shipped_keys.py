"""The stage keys of shipped targets: a change of the models must not make every user build every engine again."""

from dataclasses import replace
from pathlib import Path

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.release.execute import key_content
from llm_pipeline.stages.build import STAGE, BuildConfig

TARGETS = sorted((Path(__file__).parents[2] / "configs" / "targets").glob("*.yaml"))
KEYS = {
    "a10": "ce5784329a7cfc97",
    "a10_vllm": "3de13b01434b5882",
    "b200": "b046479e0ffb2538",
    "cpu": "475175fd65597ef7",
    "cpu_engine_int4": "93d1007c4c2f4c1a",
    "h100": "bb7fcaaeeb48edce",
    "h100_tp2": "7a5763668814642e",
    "h100_tp4": "3049afdbf860ab84",
    "h100_vllm": "e16ac5a2d6c1fe77",
    "h200": "d4b518d622a0805d",
    "h200_tp2": "860e469763039f82",
    "h200_tp4": "72dff3f621b471c3",
    "h200_vllm": "4950587ddc471e2e",
    "l4": "9703dbf0dd55956b",
    "l40s": "90bf721b9d67be56",
    "l40s_engine": "153ae1d656cd2f28",
    "l40s_vllm": "5828f5b778b3584d",
}


def key_of(path: Path) -> str:
    """The key of the build, without the versions of its tools, which are those of whoever runs it."""
    config = BuildConfig(target=load_yaml(path, Target))
    inputs = {"checkpoint": ArtifactRef(kind="checkpoint", digest="c" * 64)}
    return key_content(replace(STAGE, tools=()), config, inputs, path.stem).key[:16]


def test_the_shipped_targets_keep_their_keys() -> None:
    assert {path.stem: key_of(path) for path in TARGETS} == KEYS


def test_a_release_is_named_by_the_same_fields_as_ever() -> None:
    assert set(ResolvedRelease.model_fields) == {
        "name", "description", "model", "baseline", "recipes", "targets", "policy", "evaluation", "workload",
        "approval", "drill", "ladder",
    }  # fmt: skip
