from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

from safetensors.torch import load_file

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe
from llm_pipeline.quantization.tensorrt_llm_checkpoint import check_tensorrt_llm_checkpoint
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.quantize import QuantizeConfig
from llm_pipeline.store import open_store

DATA = Path(__file__).parents[2] / "configs/calibration/demo.jsonl"
CALIBRATION = Calibration(sources=("calibration/demo.jsonl",), samples=8, maximum_tokens=16, batch_size="auto")


def make_recipe(weights="fp8", **options):
    options.setdefault("calibration", CALIBRATION)
    return QuantizationRecipe(name=weights, weights=weights, **options)


@pytest.fixture(scope="module")
def quantize(source, tmp_path_factory):
    root = tmp_path_factory.mktemp("quantize")
    store = open_store(f"file://{root}/store")
    (root / "data").mkdir()
    (root / "data/demo.jsonl").write_bytes(DATA.read_bytes())
    inputs = {"checkpoint": store.publish("checkpoint", source), "calibration": store.publish("dataset", root / "data")}

    def run(recipe):
        request = StageRequest(
            release_id="r1",
            stage="quantize",
            subject=recipe.name,
            config=QuantizeConfig(recipe=recipe, dtype="bfloat16").model_dump(mode="json"),
            inputs=inputs if recipe.calibration else {"checkpoint": inputs["checkpoint"]},
            store=store.uri,
            work_root=str(root / "work"),
        )
        return execute(request)

    run.store = store
    return run


@pytest.fixture(scope="module")
def fp8(quantize):
    return quantize(make_recipe())


def test_a_calibration_is_a_result_that_is_kept_with_the_checkpoint(quantize, fp8):
    assert fp8.metrics["calibration"] == "computed"
    assert fp8.artifacts["calibration"].kind == "calibration"
    assert fp8.metrics["peak_host_bytes"] > 50e6
    assert fp8.metrics["calibration_batch"] <= 8


def test_another_export_of_the_same_calibration_calibrates_nothing(quantize, fp8):
    both = quantize(make_recipe(tensorrt_llm_checkpoint=True))
    assert not both.reused
    assert both.metrics["calibration"] == "restored"
    assert both.artifacts["calibration"] == fp8.artifacts["calibration"]
    assert both.artifacts["checkpoint"] == fp8.artifacts["checkpoint"]
    assert "seconds_calibrate" not in both.metrics


@pytest.mark.parametrize(
    ("weights", "algorithm", "ranks"),
    [("int8_smoothquant", "W8A8_SQ_PER_CHANNEL", 2), ("int8_weight_only", "W8A16", 1)],
)
def test_a_tensorrt_llm_checkpoint_is_exported_beside_the_other(quantize, weights, algorithm, ranks):
    calibration = None if weights == "int8_weight_only" else CALIBRATION
    exported = {"tensorrt_llm_checkpoint": True, "tensorrt_llm_ranks": {"tensor": ranks}}
    result = quantize(make_recipe(weights, calibration=calibration, **exported))
    directory = quantize.store.fetch(result.artifacts["tensorrt_llm_checkpoint"])
    config = json.loads((directory / "config.json").read_text())
    assert config["quantization"]["quant_algo"] == algorithm
    files = [directory / f"rank{rank}.safetensors" for rank in range(ranks)]
    assert result.metrics["tensorrt_llm_bytes"] == sum(path.stat().st_size for path in files)
    assert "transformer.layers.1.mlp.proj.weights_scaling_factor" in load_file(directory / "rank0.safetensors")


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"hidden_act": None}, {"mapping": {"world_size": 2}}])
def test_a_tensorrt_llm_checkpoint_that_says_something_else_is_refused(quantize, tmp_path, change):
    recipe = make_recipe("int8_weight_only", calibration=None, tensorrt_llm_checkpoint=True)
    made = quantize.store.fetch(quantize(recipe).artifacts["tensorrt_llm_checkpoint"])
    config = json.loads((made / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value}))
    (tmp_path / "rank0.safetensors").symlink_to(made / "rank0.safetensors")
    with pytest.raises(IntegrityError):
        check_tensorrt_llm_checkpoint(tmp_path, recipe, "bfloat16")


def test_a_tensorrt_llm_checkpoint_of_a_format_that_has_none_is_refused_at_once(quantize):
    failure = quantize(make_recipe("fp8_block", calibration=None, tensorrt_llm_checkpoint=True))
    assert failure.error.type == "Unsupported"
    assert "fp8_block" in failure.error.message
    assert "remove tensorrt_llm_checkpoint" in failure.error.hint


def test_rungs_of_a_search_share_one_calibration(quantize):
    search = {"formats": ("int4_blockwise", "fp8"), "effective_bits": (6.0, 8.0), "score_samples": 8}
    low, high = (quantize(rung) for rung in make_recipe("auto", search=search).rungs())
    assert (low.metrics["calibration"], high.metrics["calibration"]) == ("computed", "restored")
    assert low.artifacts["calibration"] == high.artifacts["calibration"]
    assert low.metrics["effective_bits"] <= 6.0 < high.metrics["effective_bits"] <= 8.0
    assert low.metrics["layers_int4_blockwise"] > high.metrics["layers_int4_blockwise"]
