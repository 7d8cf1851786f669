from __future__ import annotations

import pytest
from published_configs import HARMLESS

from llm_pipeline.artifacts.checkpoint_directory import check_directory, check_document, followed_keys
from llm_pipeline.base.errors import IntegrityError

CONFIG, TOKENIZER, TOKENS = "config.json", "tokenizer_config.json", "special_tokens_map.json"


@pytest.mark.parametrize(
    ("file", "document", "key"),
    [
        (CONFIG, {"transformers_weights": "/models/good.safetensors"}, "transformers_weights"),
        (CONFIG, {"transformers_weights": "../good.safetensors"}, "transformers_weights"),
        (CONFIG, {"transformers_weights": "other.safetensors"}, "transformers_weights"),
        (CONFIG, {"text_config": {"transformers_weights": "x.safetensors"}}, "text_config.transformers_weights"),
        (CONFIG, {"layers": [{"transformers_weights": "x.safetensors"}]}, "layers.transformers_weights"),
        (CONFIG, {"configuration_files": ["config.4.0.0.json"]}, "configuration_files"),
        (CONFIG, {"gguf_file": "x.gguf"}, "gguf_file"),
        (CONFIG, {"attn_implementation": "someone/kernel"}, "attn_implementation"),
        (CONFIG, {"_attn_implementation": {"text_config": "someone/kernel@v1:x"}}, "_attn_implementation"),
        (CONFIG, {"experts_implementation": "someone/kernel"}, "experts_implementation"),
        (CONFIG, {"vision_config": {"backbone": "/m", "use_pretrained_backbone": True}}, "vision_config.backbone"),
        (CONFIG, {"speculators_config": {"verifier": {"name_or_path": "/m"}}}, "speculators_config"),
        ("processor_config.json", {"audio_tokenizer": {"audio_tokenizer_name_or_path": "/m"}}, "audio_tokenizer."),
        ("speaker_embeddings_path.json", {"repo_or_path": "/m"}, "repo_or_path"),
        ("preprocessor_config.json", {"repo_path": "/m", "class_info_file": "x.json"}, "class_info_file"),
        ("adapter_config.json", {"base_model_name_or_path": "/m"}, "base_model_name_or_path"),
        (TOKENIZER, {"tokenizer_file": "/models/tokenizer.json"}, "tokenizer_file"),
        (TOKENIZER, {"tokenizer_file": "../tokenizer.json"}, "tokenizer_file"),
        (TOKENIZER, {"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}, "fast_tokenizer_files"),
        (TOKENIZER, {"vocab_file": "/v.json", "merges_file": "/m.txt"}, "merges_file"),
        (TOKENIZER, {"vocab": "/v.json"}, "vocab"),
        (TOKENIZER, {"init_inputs": ["/v.json"]}, "init_inputs"),
        (TOKENIZER, {"sp_model_kwargs": {"model_file": "/x.model"}}, "sp_model_kwargs.model_file"),
        (TOKENIZER, {"mecab_kwargs": {"mecab_option": "-d /dictionary"}}, "mecab_kwargs.mecab_option"),
        (TOKENIZER, {"gguf_file": "/x.gguf"}, "gguf_file"),
        (TOKENS, {"tokenizer_file": "/models/tokenizer.json"}, "tokenizer_file"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_a_key_that_leads_a_loader_elsewhere_is_refused_by_name(file, document, key):
    with pytest.raises(IntegrityError) as refused:
        check_document(file, document, where=file)
    assert f"{key}" in str(refused.value)
    assert refused.value.where == file
    assert "publish" in refused.value.hint


@pytest.mark.parametrize(("file", "document"), HARMLESS.values(), ids=HARMLESS.keys())
def test_what_is_published_and_harmless_is_accepted(file, document):
    assert followed_keys(file, document) == ()


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "model.safetensors").write_bytes(b"")
    return directory


@pytest.mark.parametrize("directory_too", [False, True], ids=["file", "directory"])
def test_a_link_out_of_the_directory_is_refused(checkpoint, tmp_path, directory_too):
    outside = tmp_path / "outside"
    outside.mkdir() if directory_too else outside.write_bytes(b"")
    (checkpoint / "linked").symlink_to(outside)
    with pytest.raises(IntegrityError, match="a link leads out of the directory") as refused:
        check_directory(checkpoint)
    assert refused.value.where == f"{checkpoint}/linked"


@pytest.mark.parametrize("shard", ["/models/good.safetensors", "../good.safetensors", "a/../../good.safetensors"])
def test_an_index_with_shards_outside_of_the_directory_is_refused(checkpoint, shard):
    (checkpoint / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{shard}"}}}}')
    with pytest.raises(IntegrityError, match="a shard outside of the directory"):
        check_directory(checkpoint)


def test_a_key_that_leads_elsewhere_is_refused_in_a_subdirectory_too(checkpoint):
    (checkpoint / "tokenizer").mkdir()
    (checkpoint / "tokenizer/tokenizer_config.json").write_text('{"tokenizer_file": "/models/tokenizer.json"}')
    with pytest.raises(IntegrityError, match=r"'tokenizer_file' is '/models/tokenizer\.json'"):
        check_directory(checkpoint)


@pytest.mark.parametrize(("name", "content"), [("config.json", "{"), ("tokenizer_config.json", '{"a": 1, "a": 2}')])
def test_malformed_json_in_a_directory_is_refused(checkpoint, name, content):
    (checkpoint / name).write_text(content)
    with pytest.raises(IntegrityError, match="not usable JSON") as refused:
        check_directory(checkpoint)
    assert refused.value.where == f"{checkpoint}/{name}"
