"""The real loaders, with keys that name a canary: what they open without the door, and that nothing passes it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

import transformers
from published_configs import HARMLESS
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from llm_pipeline.accuracy.scorer import checkpoint_model
from llm_pipeline.artifacts import checkpoint_loading
from llm_pipeline.artifacts.checkpoint_directory import followed_keys
from llm_pipeline.artifacts.checkpoint_loading import load_causal_model, load_config, load_tokenizer
from llm_pipeline.base.confinement import landlock_version
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.config.release import Evaluation
from llm_pipeline.quantization.readback import load_model

needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
EVALUATION = Evaluation(tasks=("a",), served_tasks=("a",), maximum_length=64)
LOCAL = {"local_files_only": True, "trust_remote_code": False}


@pytest.fixture
def good(llama, tmp_path):
    """A checkpoint with its tokenizer, outside of the one that is loaded."""
    return shutil.copytree(llama, tmp_path / "good")


@pytest.fixture
def noise(good, tmp_path):
    """A checkpoint with the same files whose weights are noise."""
    directory = shutil.copytree(good, tmp_path / "noise")
    weights = load_file(directory / "model.safetensors")
    save_file({name: torch.randn_like(value) for name, value in weights.items()}, directory / "model.safetensors")
    return directory


def change(path, **changes):
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **changes}))


def weights_of(good, noise, way):
    """Names of the good weights, as the noise's configuration may give them."""
    if way == "same directory":
        shutil.copyfile(good / "model.safetensors", noise / "other.safetensors")
    return {
        "absolute": str(good / "model.safetensors"),
        "parent": "../good/model.safetensors",
        "same directory": "other.safetensors",
    }[way]


@pytest.mark.parametrize("way", ["absolute", "parent", "same directory"])
def test_weights_that_the_configuration_names_are_not_loaded(good, noise, way):
    change(noise / "config.json", transformers_weights=weights_of(good, noise, way))
    followed = AutoModelForCausalLM.from_pretrained(noise, **LOCAL)  # the fault that the door is for
    assert torch.equal(followed.lm_head.weight, load_file(good / "model.safetensors")["lm_head.weight"])
    loads = {
        "baseline": lambda: load_model(noise, torch.float32),
        "quantize": lambda: load_causal_model(noise, dtype=torch.float32),
        "accuracy": lambda: checkpoint_model("hf", noise, load_tokenizer(noise), EVALUATION, "float32"),
        "validation": lambda: load_config(noise),
    }
    for stage, load in loads.items():
        with pytest.raises(
            IntegrityError, match=r"'transformers_weights' is|not every loader reads this file"
        ) as refused:
            load()
        assert refused.value.where in (f"{noise}/config.json", "other.safetensors"), stage


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_tokenizer_that_a_file_names_is_not_loaded(good, noise, file):
    document = json.loads((good / "tokenizer.json").read_text())
    document["added_tokens"].append({**document["added_tokens"][0], "id": 60_000, "content": "<canary>"})
    (good / "tokenizer.json").write_text(json.dumps(document))
    change(noise / file, tokenizer_file=str(good / "tokenizer.json"))
    with pytest.raises(IntegrityError, match="'tokenizer_file' is") as refused:
        load_tokenizer(noise)
    assert refused.value.where == f"{noise}/{file}"


def test_every_file_that_a_tokenizer_of_transformers_opens_by_name_is_a_followed_key():
    sources = Path(transformers.__file__).parent.glob("models/*/tokenization_*.py")
    tables = [
        table
        for source in sources
        for table in re.findall(r"VOCAB_FILES_NAMES = {(.*?)}", source.read_text(), re.DOTALL)
    ]
    names = {name for found in tables for name in re.findall(r"[\"'](\w+)[\"']:", found)}
    assert {"vocab_file", "merges_file", "tokenizer_file", "source_spm"} <= names
    assert not [name for name in names if not followed_keys("tokenizer_config.json", {name: "/canary"})]


@needs_landlock
def test_behind_the_door_the_kernel_denies_what_the_check_would_miss(good, noise, monkeypatch):
    monkeypatch.setattr(checkpoint_loading, "check_directory", lambda _: None)
    change(noise / "config.json", transformers_weights=str(good / "model.safetensors"))
    with pytest.raises((OSError, IntegrityError)):
        load_causal_model(noise, dtype=torch.float32)
    change(noise / "config.json", transformers_weights=None)
    change(noise / "tokenizer_config.json", tokenizer_file=str(good / "tokenizer.json"))
    with pytest.raises(Exception, match=r"[Pp]ermission denied|tried to read"):
        load_tokenizer(noise)


@pytest.mark.parametrize(("file", "document"), HARMLESS.values(), ids=HARMLESS.keys())
def test_what_is_published_and_harmless_still_loads(good, file, document):
    kept = {
        key: value for key, value in document.items() if key not in ("model_type", "architectures", "vision_config")
    }
    change(good / file, **kept)
    assert load_causal_model(good, dtype=torch.float32).num_parameters()
    assert load_tokenizer(good)("a").input_ids


@pytest.fixture
def opened():
    """What this process opens, by Python's audit hook, which cannot be removed again and is told to stop."""
    paths, listening = set(), [True]

    def note(event, arguments):
        if event == "open" and listening:
            paths.add(str(arguments[0]))

    sys.addaudithook(note)
    yield paths
    listening.clear()


def test_no_loader_opens_what_a_harmless_key_names(good, tmp_path, opened):
    canary = tmp_path / "canary"
    canary.mkdir()
    for name in ("config.json", "special_tokens_map.json", "model.safetensors"):
        shutil.copyfile(good / (name if (good / name).exists() else "config.json"), canary / name)
    change(good / "config.json", _name_or_path=str(canary))
    tokens = str(canary / "special_tokens_map.json")
    change(good / "tokenizer_config.json", name_or_path=str(canary), special_tokens_map_file=tokens)
    opened.clear()
    AutoModelForCausalLM.from_pretrained(good, **LOCAL)
    AutoTokenizer.from_pretrained(good, **LOCAL)
    assert any(path.startswith(str(good)) for path in opened)
    assert not [path for path in opened if path.startswith(str(canary))]
