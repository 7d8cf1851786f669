"""Whatever the files of a repository hold: they are taken as sound, or refused with one clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st
from mutations import HOSTILE_TEXTS, documents, mutated, mutated_bytes
from safetensors_files import write_safetensors

from llm_pipeline.artifacts.model_files import select_files
from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.errors import ExitCode, IntegrityError, PipelineError
from llm_pipeline.hub.checkpoint import check_checkpoint
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.model_card import card_fields, stated_license

WEIGHTS, INDEX = "model-00001-of-00001.safetensors", "model.safetensors.index.json"
TENSORS = {"model.embed_tokens.weight": ("F32", [8, 4], bytes(128)), "model.norm.weight": ("F32", [4], bytes(16))}
FILES = {
    "config.json": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4, "intermediate_size": 8,
        "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 1, "vocab_size": 8,
        "max_position_embeddings": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "tie_word_embeddings": True, "torch_dtype": "float32", "transformers_version": "5.5.4",
    },
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**30, "eos_token": "</s>",
        "added_tokens_decoder": {"0": {"content": "<s>", "special": True}}, "chat_template": "{{ messages }}",
    },
    "generation_config.json": {"eos_token_id": [1, 2], "temperature": 0.6, "do_sample": True},
    "special_tokens_map.json": {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}},
    INDEX: {"metadata": {"total_size": 144}, "weight_map": dict.fromkeys(TENSORS, WEIGHTS)},
}  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    write_safetensors(tmp_path / WEIGHTS, TENSORS)
    return tmp_path


def model_of(directory: Path) -> PinnedModel:
    files = tuple(HubFile(path=path.name, size=path.stat().st_size, sha256="0" * 64) for path in directory.iterdir())
    return PinnedModel(id="demo/tiny", commit="0" * 40, files=files)


def require_clear(error: PipelineError) -> None:
    assert error.family == "terminal"
    assert error.exit_code in (ExitCode.BAD_INPUT, ExitCode.INFRASTRUCTURE)
    assert error.where, "an error names its file"
    assert len(str(error)) < 5_000


def test_a_sound_repository_is_taken(repository: Path) -> None:
    check_checkpoint(model_of(repository), repository)


@pytest.mark.parametrize("name", FILES)
def test_any_content_of_a_json_file_is_taken_or_refused(repository: Path, fuzz, name: str) -> None:
    def check(content: bytes) -> None:
        (repository / name).write_bytes(content)
        try:
            check_checkpoint(model_of(repository), repository)
        except PipelineError as error:
            require_clear(error)

    fuzz(documents(FILES[name]), check, 40, 4_000)


def test_any_bytes_of_a_weights_file_are_taken_or_refused(repository: Path, fuzz) -> None:
    sound = (repository / WEIGHTS).read_bytes()

    def check(content: bytes) -> None:
        (repository / WEIGHTS).write_bytes(content)
        try:
            check_checkpoint(model_of(repository), repository)
        except IntegrityError as error:
            require_clear(error)

    fuzz(mutated_bytes(sound), check, 150, 20_000)


NAMES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["a/../b", "/x", "..", "a\\b", "CON", "a:b", "~x", "x" * 300, "\uff46ull.json", "\x1b[1m", "a\nb"]),
)


def test_any_listing_of_a_repository_is_taken_or_refused(fuzz) -> None:
    def check(names: list[str]) -> None:
        try:
            selection = select_files([*names, "config.json", WEIGHTS], where="demo/tiny")
        except PipelineError as error:
            require_clear(error)
            return
        for path in selection.fetched:
            assert not path.startswith("/")
            assert ".." not in path.split("/")

    fuzz(st.lists(NAMES, max_size=6, unique=True), check, 150, 20_000)


def test_any_model_card_has_a_licence_or_none(fuzz) -> None:
    fields = {"license": "apache-2.0", "license_name": "x", "tags": ["a"], "extra": {"deep": [1, {"a": None}]}}

    def check(content: bytes) -> None:
        text = b"---\n" + content + b"\n---\n# Card\n"
        try:
            stated = stated_license(card_fields(text.decode(errors="replace")))
        except PipelineError as error:
            require_clear(error)
            return
        assert stated is None or isinstance(stated, str)

    fuzz(documents(fields), check, 60, 4_000)


def test_any_directory_resolves_or_is_refused(repository: Path, fuzz) -> None:
    def check(changed: dict) -> None:
        for path in repository.iterdir():
            path.unlink()
        for name, content in changed.items():
            if isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\x00" not in name:
                try:
                    (repository / name).write_text(json.dumps(content))
                except (OSError, UnicodeEncodeError):
                    continue
        try:
            DirectorySource(repository).resolve("demo/tiny", "main")
        except PipelineError as error:
            require_clear(error)

    fuzz(mutated({**FILES, WEIGHTS: "x"}), check, 40, 2_000)


def test_the_hostile_texts_are_refused_by_name(repository: Path) -> None:
    for content in HOSTILE_TEXTS:
        (repository / "config.json").write_bytes(content)
        with pytest.raises(PipelineError) as refused:
            check_checkpoint(model_of(repository), repository)
        assert "config.json" in refused.value.where
