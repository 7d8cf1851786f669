"""Which GPUs of its host a stage's process sees."""

from __future__ import annotations

import pytest
from deployment_here import place_document
from store_history import TARGET, History

from llm_pipeline.config.deployment import QuantizationHost, TargetPlace
from llm_pipeline.release.measured_cost import gpu_indices
from llm_pipeline.release.record import read_release_record


@pytest.mark.parametrize(
    ("stage", "subject", "seen"),
    [("baseline", "", (2, 3)), ("accuracy", "fp8", (2, 3)), ("build", TARGET, (1,)), ("choose", TARGET, None)],
)
def test_a_stage_sees_the_gpus_of_its_place_only(tmp_path, stage, subject, seen):
    history = History(tmp_path)
    host = QuantizationHost(accelerator="H100-SXM-80GB", count=2, gpus=(2, 3))
    place = place_document(iter(range(18000, 18020)))
    places = {TARGET: TargetPlace.model_validate(place | {"staging": place["staging"] | {"gpus": [1]}})}
    deployment = history.deployment.model_copy(update={"quantization_host": host, "places": places})
    record = read_release_record(history.store, history.resolve(1))
    assert gpu_indices(deployment, record, stage, subject) == seen
