from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
mtq = pytest.importorskip("modelopt.torch.quantization")

from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe
from llm_pipeline.quantization import modelopt_quantizer
from llm_pipeline.quantization.calibration import read_calibration
from llm_pipeline.quantization.calibration_passes import CalibrationPasses
from llm_pipeline.quantization.calibration_state import CalibrationState, QuantizerState, from_json, to_json
from llm_pipeline.quantization.calibration_store import calibration_key
from llm_pipeline.quantization.device_memory import Placement, is_offloaded
from llm_pipeline.quantization.modelopt_configs import modelopt_config
from llm_pipeline.quantization.modelopt_quantizer import Quantizer

torch.set_num_threads(1)

DATA = Path(__file__).parents[2] / "configs/calibration/demo.jsonl"
CALIBRATION = Calibration(sources=("calibration/demo.jsonl",), samples=8, maximum_tokens=16, batch_size=8)
CALIBRATED = {
    "fp8": ("fp8", "none"),
    "int8_smoothquant": ("int8_smoothquant", "none"),
    "w4a8_awq": ("w4a8_awq", "none"),
    "int4_awq_kv_fp8": ("int4_awq", "fp8"),
}
PARTLY_ON_DISK = Placement(
    {
        "model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu",
        "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu",
    },
    offloads=True,
)  # fmt: skip


def make_recipe(name):
    weights, kv_cache = CALIBRATED[name]
    exclude = ("*lm_head*", "*layers.1.*")  # one layer shows it as well as two
    return QuantizationRecipe(name=name, weights=weights, kv_cache=kv_cache, exclude=exclude, calibration=CALIBRATION)


def make_quantizer(source, recipe, work):
    data = read_calibration(source, recipe, DATA)
    return Quantizer(source, recipe, data, dtype=torch.bfloat16, device="cpu", work=work)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module", params=list(CALIBRATED))
def exported(request, source, tmp_path_factory):
    """Recipe, state and export of an uninterrupted quantization."""
    work = tmp_path_factory.mktemp(request.param)
    quantizer = make_quantizer(source, make_recipe(request.param), work)
    quantizer.calibrate(work / "state")
    quantizer.export(work / "export", work / "state")
    return make_recipe(request.param), work / "state", work / "export"


def test_an_export_from_the_saved_state_is_the_uninterrupted_one_byte_for_byte(exported, source, tmp_path, monkeypatch):
    recipe, state, export = exported
    monkeypatch.setattr(modelopt_quantizer, "CalibrationPasses", None)  # nothing is calibrated again
    make_quantizer(source, recipe, tmp_path).export(tmp_path / "again", state)
    assert contents(tmp_path / "again") == contents(export)


def test_the_state_holds_no_weights_and_nothing_that_has_to_be_unpickled(exported, source):
    _, state, _ = exported
    loaded = CalibrationState.load(state)
    assert not loaded.weights
    assert (
        sum(tensor.nbytes for tensor in loaded.rescaled.values()) < 0.02 * (source / "model.safetensors").stat().st_size
    )
    assert {path.suffix for path in state.iterdir()} == {".json", ".safetensors"}
    for path in state.iterdir():
        with pytest.raises(pickle.UnpicklingError), path.open("rb") as stream:
            pickle.load(stream)  # noqa: S301 - to see that it is none


@pytest.mark.parametrize("exported", ["fp8", "int8_smoothquant"], indirect=True)
def test_leaving_the_head_out_of_the_passes_changes_nothing(exported, source, tmp_path):
    recipe, _, export = exported
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()

    def whole_model(calibrated):
        for batch in CalibrationPasses(read_calibration(source, recipe, DATA), 8).batches:
            with torch.no_grad():
                calibrated(input_ids=torch.tensor(batch))

    mtq.quantize(model, modelopt_config(recipe), whole_model)
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=tmp_path)
    assert contents(tmp_path).items() <= contents(export).items()


@pytest.mark.parametrize("exported", ["fp8", "w4a8_awq"], indirect=True)
def test_a_model_that_is_partly_on_disk_is_calibrated_and_exported_the_same(exported, source, tmp_path, monkeypatch):
    recipe, state, export = exported
    quantizer = make_quantizer(source, recipe, tmp_path)
    monkeypatch.setattr(quantizer, "_placement", lambda: PARTLY_ON_DISK)
    assert is_offloaded(quantizer._loaded(PARTLY_ON_DISK))
    quantizer.calibrate(tmp_path / "state")
    quantizer.export(tmp_path / "export", tmp_path / "state")
    assert contents(tmp_path / "state") == contents(state)
    assert contents(tmp_path / "export") == contents(export)


def test_of_an_algorithm_that_changes_weights_freely_the_weights_are_kept(source, tmp_path, monkeypatch):
    recipe = make_recipe("fp8").model_copy(update={"exclude": ("*lm_head*", "*mlp*", "*layers.1.*")})

    def optimal_brain(_recipe):
        return {**modelopt_config(_recipe), "algorithm": "gptq"}

    monkeypatch.setattr(modelopt_quantizer, "modelopt_config", optimal_brain)
    quantizer = make_quantizer(source, recipe, tmp_path)
    quantizer.calibrate(tmp_path / "state")
    assert len(CalibrationState.load(tmp_path / "state").weights) == 4
    quantizer.export(tmp_path / "export", tmp_path / "state")
    make_quantizer(source, recipe, tmp_path).export(tmp_path / "again", tmp_path / "state")
    assert contents(tmp_path / "again") == contents(tmp_path / "export")


@pytest.mark.parametrize("name", ["calibration.json", "calibration.safetensors"])
def test_a_damaged_state_is_refused(tmp_path, name):
    tensors = {"a:_amax": torch.ones(2)}
    CalibrationState({"fp8": QuantizerState({"a": {"_num_bits": (4, 3)}}, tensors)}).save(tmp_path / "state")
    assert CalibrationState.load(tmp_path / "state").quantizers["fp8"].properties == {"a": {"_num_bits": (4, 3)}}
    damaged = tmp_path / "state" / name
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(IntegrityError, match="unreadable calibration"):
        CalibrationState.load(tmp_path / "state")


def test_what_modelopt_keeps_survives_as_json():
    kept = {
        "a": (4, 3),
        "b": {-1: 128, "type": "static"},
        "c": torch.bfloat16,
        "d": torch.Size([2, 1]),
        "e": [None, 0.5],
    }
    restored = from_json(json.loads(json.dumps(to_json(kept))))
    assert restored == kept
    assert isinstance(restored["d"], torch.Size)
    assert from_json(to_json({"tuple": [1]})) == {"tuple": [1]}


def test_what_is_no_plain_data_is_not_written():
    with pytest.raises(TypeError, match="function"):
        to_json({"a": [lambda: None]})


def test_an_element_type_is_nothing_else_of_torch():
    with pytest.raises(ValueError, match="not an element type"):
        from_json({"dtype": "load"})


def test_the_key_changes_with_everything_but_the_rung():
    search = {"formats": ("fp8",), "effective_bits": (8.0, 9.0)}
    recipe = QuantizationRecipe(name="auto", weights="auto", search=search, calibration=CALIBRATION)
    low, high = recipe.rungs()
    other_batch = recipe.model_copy(update={"calibration": CALIBRATION.model_copy(update={"batch_size": 4})})
    assert calibration_key(low, "c", "t", "float16", 1) == calibration_key(high, "c", "t", "float16", 1)
    others = [
        calibration_key(recipe, *rest)
        for rest in [
            ("d", "t", "float16", 1),
            ("c", "u", "float16", 1),
            ("c", "t", "bfloat16", 1),
            ("c", "t", "float16", 2),
        ]
    ]
    others.append(calibration_key(other_batch, "c", "t", "float16", 1))
    assert len({calibration_key(low, "c", "t", "float16", 1), *others}) == 6
