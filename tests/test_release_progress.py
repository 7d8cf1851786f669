from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deployment_here import place_document
from place_here import pointer, serve
from resolved_release import deployment_below, record_of, tiny_release

from llm_pipeline.base.errors import ConfigError, IntegrityError, Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.release.contract import StageFailure, StageResult, Timings
from llm_pipeline.release.execute import KeyContent, StageRecord, failure_name, results_name, stage_record_name
from llm_pipeline.release_progress import MissingResult, ReleaseProgress
from llm_pipeline.stages.canary import CanaryConfig
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.lease import Lease

MORNING = datetime(2026, 1, 5, 9, tzinfo=UTC)
RECIPES = dict.fromkeys(("int3", "int4", "int8", "fp8", "nowhere"), "int8_weight_only") | {"none": "none"}
REPOSITORY = ArtifactRef(kind="model_repository", digest="a" * 64)


def flow(store: ArtifactStore, resolved_at: datetime, **changes: Any) -> ReleaseProgress:
    deployment = deployment_below(
        Path("/"),
        store=store.uri,
        environments={"model": "/model/python", "vllm": "/vllm/python"},
        places={"cpu": place_document(iter(range(18540, 18560)))},
    )
    recipes = tuple(QuantizationRecipe(name=name, weights=weights) for name, weights in RECIPES.items())
    release = tiny_release(name="r", recipes=recipes)
    record = record_of(deployment, "r1", release=release, created_at=resolved_at, **changes)
    return ReleaseProgress(store, record)


def write_result(store: ArtifactStore, stage: str, subject: str, release_id: str = "r1", **made: Any) -> StageResult:
    """A stage's result in a release."""
    result = StageResult.model_validate(
        {
            "release_id": release_id,
            "stage": stage,
            "subject": subject,
            "key": "k" * 64,
            "timings": Timings(started_at=MORNING, total_seconds=1.0),
            **made,
        }
    )
    store.write_document(results_name(release_id, stage, subject), result.model_dump(mode="json"), None)
    return result


def packaged(store: ArtifactStore) -> None:
    write_result(store, "package", "cpu", artifacts={"repository": REPOSITORY})


def test_canary_steps_of_one_run_know_the_same_run_their_share_and_the_repository(store) -> None:
    packaged(store)

    def step(resolved_at: datetime, percent: str) -> CanaryConfig:
        request = flow(store, resolved_at).request("canary", f"cpu:{percent}")
        assert request.inputs == {"repository": REPOSITORY}
        return CanaryConfig.model_validate(request.config)

    assert [step(MORNING, percent).step_percent for percent in ("5", "25")] == [5.0, 25.0]
    assert [step(MORNING, percent).run for percent in ("5", "25")] == [MORNING.isoformat()] * 2
    assert step(MORNING + timedelta(seconds=1), "5").run not in ("", MORNING.isoformat())


def test_a_target_that_goes_to_another_place_is_served_judged_and_promoted_there(store) -> None:
    packaged(store)
    release = flow(store, MORNING, places={"cpu": "beside"})
    places = dict(release.deployment.places)
    moved = {kind: port + 100 for kind, port in places["cpu"].blue.by_name().items()}
    places["beside"] = places["cpu"].model_copy(update={"blue": ServerPorts.model_validate(moved)})
    record = release.record.model_copy(update={"deployment": release.deployment.model_copy(update={"places": places})})
    there = ReleaseProgress(store, record)
    config = CanaryConfig.model_validate(there.request("canary", "cpu:25").config)
    assert (config.target, config.place) == ("beside", places["beside"])
    assert there.request("rollback", "cpu").config["target"] == "beside"
    assert there.state_directory("cpu", "staging") == "/state/beside/staging"
    assert record.target_at("beside") == "cpu"


def test_every_server_of_a_place_runs_models_in_the_places_own_environment(store) -> None:
    packaged(store)
    release = flow(store, MORNING)
    places = {"cpu": release.deployment.places["cpu"].model_copy(update={"environment": "vllm"})}
    moved = release.record.model_copy(update={"deployment": release.deployment.model_copy(update={"places": places})})
    for subject in (("staging", "cpu"), ("staging_down", "cpu"), ("canary", "cpu:25"), ("rollback", "cpu")):
        there, here = (flow.request(*subject).config for flow in (ReleaseProgress(store, moved), release))
        assert there.get("slot", there)["python"] == "/vllm/python"
        assert here.get("slot", here)["python"] == "/model/python"


def test_a_result_that_names_other_artifacts_is_damaged_and_told_by_its_document(store) -> None:
    packaged(store)
    with pytest.raises(IntegrityError, match="no artifact 'engine'") as caught:
        flow(store, MORNING).artifact("package", "cpu", "engine")
    assert caught.value.where == results_name("r1", "package", "cpu")


def test_a_release_of_a_place_that_its_deployment_has_not_says_so(store) -> None:
    with pytest.raises(ConfigError, match="deployment here, as r1 was made with it, has no place 'gone'"):
        flow(store, MORNING, places={"cpu": "gone"}).place("cpu")


def judged(store: ArtifactStore, recipe: str, verdict: Verdict, *, quantized_again: bool = False) -> None:
    """A recipe that was quantized and judged; and quantized once more, to another checkpoint, if that is wanted."""
    first, second = (ArtifactRef(kind="checkpoint", digest=digit * 64) for digit in "12")
    fact = Evidence(name="loss", verdict=verdict, measured=0.0, samples=900)
    for stage, inputs, artifacts in (
        ("quantize", {}, {"checkpoint": second if quantized_again else first}),
        ("accuracy", {"checkpoint": first}, {}),
    ):
        content = KeyContent(stage=stage, version=1, subject=recipe, config={}, inputs=inputs, tools={})
        judgement = judge("judged", [fact]) if inputs else None
        made = {"key": content.key, "artifacts": artifacts, "metrics": {"bytes": 7}, "judgement": judgement}
        result = write_result(store, stage, recipe, **made)
        with Lease(store, stage_record_name(content.key)) as lease:
            lease.conclude(StageRecord(content=content, result=result).model_dump(mode="json"))


def climbing(store: ArtifactStore, **ladders: tuple[str, ...]) -> ReleaseProgress:
    return flow(store, MORNING, ladders=ladders)


def test_a_recipe_is_passed_over_once_a_cheaper_one_passed_wherever_it_is_legal(store) -> None:
    one = climbing(store, cpu=("int4", "fp8"))
    two = climbing(store, cpu=("int4", "fp8"), gpu=("int3", "fp8"))
    judged(store, "int4", Verdict.NO_GO)
    assert one.passed_over("fp8") is None
    judged(store, "int3", Verdict.GO)
    assert one.passed_over("int4") is None
    assert two.passed_over("fp8") is None  # gpu has what it needs, cpu does not
    judged(store, "int8", Verdict.GO)
    two = climbing(store, cpu=("int8", "fp8"), gpu=("int3", "fp8"))
    assert two.passed_over("fp8") == "a cheaper recipe passed (int8 on cpu; int3 on gpu)"
    assert climbing(store, cpu=("int3", "fp8")).passed_over("fp8") == "a cheaper recipe passed (int3)"
    assert two.passed_over("nowhere") == "nowhere is legal on no target"


def test_a_verdict_on_another_checkpoint_passes_nothing(store) -> None:
    judged(store, "int4", Verdict.GO, quantized_again=True)
    assert climbing(store, cpu=("int4", "fp8")).passed_over("fp8") is None
    assert climbing(store, cpu=("int4",)).request("choose", "cpu").config["attempts"] == []


def test_a_target_chooses_from_its_own_ladder_errors_included(store) -> None:
    judged(store, "fp8", Verdict.GO)
    error = Unsupported("infeasible").to_document()
    failure = StageFailure(release_id="r1", stage="quantize", subject="int3", error=error)
    store.write_document(failure_name("r1", "quantize", "int3"), failure.model_dump(mode="json"), None)
    attempts = climbing(store, cpu=("int3", "none", "fp8")).request("choose", "cpu").config["attempts"]
    assert [(one["recipe"], one["verdict"], one["bytes"]) for one in attempts] == [
        ("int3", None, None),
        ("fp8", "GO", 7),
    ]
    assert "quantize failed: Unsupported: infeasible" in attempts[0]["summary"]


def test_a_target_without_a_recipe_builds_nothing(store) -> None:
    write_result(store, "choose", "cpu", metrics={"recipe": None})
    with pytest.raises(MissingResult, match="no recipe passed for cpu"):
        flow(store, MORNING).request("build", "cpu")


def scored(store: ArtifactStore, release_id: str, directory: Path) -> ArtifactRef:
    """A release with a baseline of its own."""
    directory.mkdir()
    (directory / "items.jsonl").write_text(release_id)
    evaluation = store.publish("evaluation", directory)
    write_result(store, "baseline", "", release_id, artifacts={"evaluation": evaluation})
    return evaluation


def test_the_baseline_is_judged_beside_that_of_the_release_in_production(store, tmp_path) -> None:
    own, before = scored(store, "r1", tmp_path / "own"), scored(store, "r0", tmp_path / "before")
    assert flow(store, MORNING).request("baseline_gate").inputs == {"baseline": own}
    serve(store, "demo/tiny", "cpu", pointer("r0"))
    assert flow(store, MORNING).request("baseline_gate").inputs == {"baseline": own, "production": before}
    store.remove(before)
    assert flow(store, MORNING).request("baseline_gate").inputs == {"baseline": own}
