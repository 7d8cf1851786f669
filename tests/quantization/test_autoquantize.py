from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
mtq = pytest.importorskip("modelopt.torch.quantization")

from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe
from llm_pipeline.quantization import calibration_passes, modelopt_quantizer
from llm_pipeline.quantization.autoquantize import LayerGroup, SearchScores
from llm_pipeline.quantization.calibration import read_calibration
from llm_pipeline.quantization.calibration_passes import CalibrationPasses, input_ids
from llm_pipeline.quantization.calibration_state import CalibrationState
from llm_pipeline.quantization.modelopt_configs import disabled_layers, search_formats
from llm_pipeline.quantization.modelopt_quantizer import Quantizer

torch.set_num_threads(1)

DATA = Path(__file__).parents[2] / "configs/calibration/demo.jsonl"
FORMATS = ("fp8", "w4a8_awq", "int8_smoothquant")


def make_recipe(method="gradient", kv_cache="none", bits=(6.0, 8.0), formats=FORMATS):
    return QuantizationRecipe(
        name="auto",
        weights="auto",
        kv_cache=kv_cache,
        search={"formats": formats, "effective_bits": bits, "score_samples": 8, "method": method},
        calibration=Calibration(sources=("calibration/demo.jsonl",), samples=8, maximum_tokens=32, batch_size=8),
    )


def make_quantizer(source, recipe, work):
    data = read_calibration(source, recipe, DATA)
    return Quantizer(source, recipe, data, dtype=torch.bfloat16, device="cpu", work=work)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def searched(source, tmp_path_factory):
    work = tmp_path_factory.mktemp("search")
    make_quantizer(source, make_recipe().rungs()[0], work).calibrate(work / "state")
    return work / "state"


def test_a_rung_is_solved_from_the_saved_search_as_modelopt_itself_would_have_searched_it(source, searched, tmp_path):
    recipe = make_recipe().rungs()[0]
    quantizer = make_quantizer(source, recipe, tmp_path)
    quantizer.export(tmp_path / "ours", searched)

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    batches = list(CalibrationPasses(read_calibration(source, recipe, DATA), 8).batches)
    random.Random(0).shuffle(batches)  # noqa: S311
    steps = next(n for n in range(1, len(batches) + 1) if sum(map(len, batches[:n])) >= 8)
    mtq.auto_quantize(
        model,
        constraints={"effective_bits": 6.0},
        quantization_formats=search_formats(recipe),
        data_loader=batches,
        forward_step=lambda searched, batch: searched(
            input_ids=input_ids(searched, batch), labels=input_ids(searched, batch), use_cache=False
        ),
        loss_func=lambda output, _: output.loss,
        disabled_layers=disabled_layers(recipe),
        num_calib_steps=len(batches),
        num_score_steps=steps,
    )
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=tmp_path / "modelopt")
    assert contents(tmp_path / "modelopt").items() <= contents(tmp_path / "ours").items()
    assert quantizer.facts["effective_bits"] <= 6.0
    assert sum(count for name, count in quantizer.facts.items() if name.startswith("layers_")) == 15


def test_every_rung_comes_from_one_search_without_a_forward_pass(source, searched, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration_passes, "forward", None)
    monkeypatch.setattr(modelopt_quantizer.autoquantize, "search", None)
    sizes = []
    for recipe in make_recipe().rungs():
        quantizer = make_quantizer(source, recipe, tmp_path)
        quantizer.export(tmp_path / recipe.name, searched)
        sizes.append((tmp_path / recipe.name / "model.safetensors").stat().st_size)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1]


def test_bits_that_cannot_be_reached_are_refused_with_the_fewest_that_can(source, searched, tmp_path):
    recipe = make_recipe(bits=(4.5,)).rungs()[0]
    with pytest.raises(ConfigError, match=r"4\.5 cannot be reached.*mean is (\d+\.?\d*) bits") as refused:
        make_quantizer(source, recipe, tmp_path).export(tmp_path / "export", searched)
    scores = SearchScores.model_validate(CalibrationState.load(searched).search)
    assert f"{scores.smallest_bits:.4g} bits" in refused.value.message
    assert refused.value.family == "terminal"
    least = float(refused.value.hint.split()[2])
    assert scores.solve(least).effective_bits == pytest.approx(scores.smallest_bits)


def test_the_kv_cache_is_quantized_beside_a_search_by_divergence(source, tmp_path):
    recipe = make_recipe("kl_div", kv_cache="fp8", bits=(10.0,), formats=("fp8",)).rungs()[0]
    quantizer = make_quantizer(source, recipe, tmp_path)
    quantizer.calibrate(tmp_path / "state")
    quantizer.export(tmp_path / "export", tmp_path / "state")
    assert b'"kv_cache_quant_algo": "FP8"' in (tmp_path / "export/hf_quant_config.json").read_bytes()
    make_quantizer(source, recipe, tmp_path).export(tmp_path / "again", tmp_path / "state")
    assert contents(tmp_path / "again") == contents(tmp_path / "export")


def group(layers, scores):
    return LayerGroup(
        layers=layers,
        formats=("int4", "fp8", "none"),
        scores=scores,
        costs=(25.0, 50.0, 100.0),
        uncompressed=100.0,
    )


def test_scores_survive_as_json_and_the_least_harmful_choice_within_the_bits_wins():
    groups = (
        group(("a", "b"), (9.0, 1.0, 0.0)),
        group(("c",), (2.0, 1.0, 0.0)),
    )
    scores = SearchScores.model_validate_json(SearchScores(method="gradient", groups=groups).model_dump_json())
    solution = scores.solve(6.0)
    assert solution.formats == {"a": "fp8", "b": "fp8", "c": "int4"}
    assert solution.effective_bits == 6.0
    assert solution.layers_by_format == {"fp8": 2, "int4": 1}
    assert scores.smallest_bits == 4.0
