from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path

import pytest

import llm_pipeline
from llm_pipeline.artifacts.checkpoint_loading import load_confined, load_tokenizer
from llm_pipeline.base.errors import IntegrityError, Unsupported


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    return directory


def test_temporary_files_are_made_where_they_can_be_read_again(checkpoint, tmp_path):
    def load():
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write("again")
            file.flush()
            return file.name, Path(file.name).read_text()

    name, text = load_confined(checkpoint, load, scratch=tmp_path / "scratch")
    assert Path(name).parent == tmp_path / "scratch"
    assert text == "again"
    assert tempfile.gettempdir() != str(tmp_path / "scratch")


def test_what_the_loader_is_denied_is_told(checkpoint, tmp_path):
    def load():
        raise PermissionError(13, "Permission denied", str(tmp_path / "canary"))

    with pytest.raises(IntegrityError, match=r"the loader tried to read .*canary") as refused:
        load_confined(checkpoint, load)
    assert refused.value.where == str(checkpoint)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("config.json", {"model_type": "llama", "num_attention_heads": 0}, "modulo by zero"),
        ("config.json", {"model_type": "llama", "dtype": "nonsense"}, "nonsense"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}, "contains custom code"),
    ],
)
def test_what_transformers_cannot_use_is_told_in_a_line(checkpoint, file, content, told):
    pytest.importorskip("transformers")
    (checkpoint / "config.json").write_text('{"model_type": "llama"}')
    (checkpoint / file).write_text(json.dumps(content))
    (checkpoint / "own.py").write_text("raise SystemExit")
    with pytest.raises(Unsupported, match=f"Transformers cannot use this model: .*{told}") as refused:
        load_tokenizer(checkpoint)
    assert "\n" not in str(refused.value)


PACKAGE = Path(llm_pipeline.__file__).parent
LOADERS = {"from_pretrained", "main_export"}
DOORS = {
    "artifacts/checkpoint_loading.py", "quantization/readback.py", "adapters/openvino/builder.py", "demo/smollm2.py"
}  # fmt: skip
"""Where libraries may be told to load; all but the first hand the call to `load_confined`."""


def _loading_calls(path):
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if any(name in text for name in LOADERS) else ():
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in LOADERS:
                yield node


def test_no_module_loads_past_the_door():
    """Models under `serving/models` run in Triton's process; their directory is checked when it is laid out for it."""
    served = PACKAGE / "serving/models"
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        calls = list(_loading_calls(path))
        if path.is_relative_to(served):
            for call in calls:
                given = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
                assert given.get("local_files_only") is True, place
                assert given.get("trust_remote_code") is False, place
                assert "Model" not in ast.unparse(call.func) or given.get("use_safetensors") is True, place
        elif calls:
            assert place in DOORS, (
                f"{place} loads a checkpoint by itself: use llm_pipeline.artifacts.checkpoint_loading"
            )
            assert place == "artifacts/checkpoint_loading.py" or "load_confined(" in path.read_text()
