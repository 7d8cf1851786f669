"""What every source shows of a model before anything is fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizer import TOKENIZER
from unprivileged import directory_for_everyone, mode, without_root

from llm_pipeline.base.errors import ConfigError, IntegrityError, Unsupported
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.model_look import read_documents
from llm_pipeline.hub.s3_source import S3Source
from llm_pipeline.hub.source import Source, SourceRefused
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import read_facts

from .conftest import LocalHub
from .safetensors_files import safetensors

SIZES = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32,
    "max_position_embeddings": 64, "eos_token_id": 2,
}  # fmt: skip
TEMPLATE = b'{"chat_template": "{{ messages }}"}'


def weights(tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A safetensors file of zeros."""
    return safetensors({name: ("F16", shape, b"") for name, shape in tensors.items()})


def llama(*, head: bool = True) -> dict[str, tuple[int, ...]]:
    """The tensors of a small model."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 8), "model.norm.weight": (8,)}
    for layer in range(2):
        inside = {
            "self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8),
            "self_attn.o_proj": (8, 8), "mlp.gate_proj": (16, 8), "mlp.up_proj": (16, 8), "mlp.down_proj": (8, 16),
            "input_layernorm": (8,), "post_attention_layernorm": (8,),
        }  # fmt: skip
        tensors |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()}
    return tensors | ({"lm_head.weight": (32, 8)} if head else {})


FILES = {
    "config.json": json.dumps(SIZES).encode(),
    "model.safetensors": weights(llama()),
    "tokenizer_config.json": TEMPLATE,
    "tokenizer.json": TOKENIZER,
}
PARAMETERS = 2 * 32 * 8 + 2 * (2 * 64 + 2 * 32 + 3 * 128) + 5 * 8


def facts_of(source: Source) -> ModelFacts:
    return read_facts(read_documents(source.look("demo/tiny", "main")))


def on_disk(root: Path, files: dict[str, bytes]) -> DirectorySource:
    root.mkdir(exist_ok=True)
    for name, data in files.items():
        (root / name).write_bytes(data)
    return DirectorySource(root)


@pytest.fixture(params=["hub", "directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, bytes]], Source]:
    """Puts files where one of the sources finds them."""

    def put(files: dict[str, bytes]) -> Source:
        if request.param == "directory":
            return on_disk(tmp_path / "model", files)
        if request.param == "s3":
            s3: Any = request.getfixturevalue("s3")
            bucket = s3.bucket()
            for name, data in files.items():
                s3.client().put_object(Bucket=bucket, Key=f"models/tiny/{name}", Body=data)
            return S3Source(store_settings(uri=f"s3://{bucket}/models/tiny", endpoint=s3.endpoint))
        hub: LocalHub = request.getfixturevalue("local_hub")
        hub.publish(**{name.replace(".", "__"): data for name, data in files.items()})
        source: Source = request.getfixturevalue("source")
        return source

    return put


def test_every_source_shows_the_sizes_of_a_model(place: Callable[[dict[str, bytes]], Source]):
    facts = facts_of(place(FILES))
    assert facts.parameters == PARAMETERS
    assert facts.stored_bytes == 2 * PARAMETERS
    assert facts.stored_by_dtype == {"F16": 2 * PARAMETERS}
    assert (facts.layers, facts.key_value_heads, facts.context_length) == (2, 2, 64)
    assert facts.kv_elements_per_token == 2 * 2 * 2 * 2
    assert facts.chat_templates == ("default",)
    assert facts.end_tokens == (2,)
    assert not facts.tied_embeddings
    assert "headers of 1 files" in facts.origin


def test_a_long_header_is_read_whole(place: Callable[[dict[str, bytes]], Source]):
    many = llama() | {f"visual.blocks.{number}.a_parameter_with_a_long_name.weight": (1,) for number in range(1200)}
    facts = facts_of(place(FILES | {"model.safetensors": weights(many)}))
    assert facts.parameters == PARAMETERS + 1200


def test_a_hub_is_asked_for_the_begin_of_the_weights_only(local_hub: LocalHub, source: HubSource):
    large = llama() | {"visual.large": (5_000_000,)}
    local_hub.publish(
        **{name.replace(".", "__"): data for name, data in (FILES | {"model.safetensors": weights(large)}).items()}
    )
    facts_of(source)
    assert local_hub.downloads("model.safetensors") == [("model.safetensors", "bytes=0-65535")]


def test_a_head_that_is_not_there_is_the_embedding_table(tmp_path: Path):
    facts = facts_of(on_disk(tmp_path / "model", FILES | {"model.safetensors": weights(llama(head=False))}))
    assert facts.tied_embeddings
    assert facts.parameters == PARAMETERS - 32 * 8


def test_a_config_that_contradicts_the_weights_is_an_error(tmp_path: Path):
    config = json.dumps(SIZES | {"num_key_value_heads": 4}).encode()
    with pytest.raises(ConfigError, match=r"num_key_value_heads x head_dim is 8, k_proj has \[4\] rows"):
        facts_of(on_disk(tmp_path / "model", FILES | {"config.json": config}))


def test_what_is_no_model_is_refused_as_in_the_download(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no such directory"):
        facts_of(DirectorySource(tmp_path / "none"))
    with pytest.raises(Unsupported, match="no safetensors file"):
        facts_of(on_disk(tmp_path / "empty", {"config.json": FILES["config.json"]}))
    with pytest.raises(IntegrityError, match="not a sound safetensors file"):
        facts_of(on_disk(tmp_path / "damaged", FILES | {"model.safetensors": b"\xff" * 100}))


INDEX = "model.safetensors.index.json"
TWO = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def test_weights_in_shards_are_read_and_those_that_the_download_would_refuse_are_refused_before_it(tmp_path: Path):
    names = sorted(llama())
    parts = ({name: llama()[name] for name in names[:5]}, {name: llama()[name] for name in names[5:]})
    weight_map = {name: shard for shard, part in zip(TWO, parts, strict=True) for name in part}
    files = {name: data for name, data in FILES.items() if name != "model.safetensors"}
    files |= {shard: weights(part) for shard, part in zip(TWO, parts, strict=True)}
    files[INDEX] = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()
    assert facts_of(on_disk(tmp_path / "sound", files)).parameters == PARAMETERS
    with pytest.raises(IntegrityError, match="in two shards"):
        facts_of(on_disk(tmp_path / "wrong", files | {TWO[1]: weights(llama())}))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 4976698672\n"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_clone_without_its_large_files_is_told_how_to_get_them(tmp_path: Path, name: str):
    with pytest.raises(IntegrityError, match="a pointer of Git LFS") as caught:
        facts_of(on_disk(tmp_path / "model", FILES | {name: LFS}))
    assert "git lfs pull" in caught.value.hint


def test_modelopts_own_file_says_how_a_checkpoint_is_quantized(tmp_path: Path):
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}
    files = FILES | {"hf_quant_config.json": json.dumps(told).encode()}
    assert facts_of(on_disk(tmp_path / "model", files)).stored_format == "modelopt FP8"


def tokenizer(added: dict[str, bool], **settings: str) -> dict[str, bytes]:
    """Tokenizer files with tokens after the 32 that the embedding has rows for, special ones or not."""
    document = json.loads(TOKENIZER)
    document["added_tokens"] += [
        document["added_tokens"][0] | {"id": 32 + number, "content": token, "special": special}
        for number, (token, special) in enumerate(added.items())
    ]
    return {"tokenizer.json": json.dumps(document).encode(), "tokenizer_config.json": json.dumps(settings).encode()}


@pytest.mark.parametrize(
    ("changed", "problem", "advice"),
    [
        (tokenizer({"<tool>": False}), r"'<tool>' is token 32, and the embedding table has 32 rows", "resize_token"),
        (tokenizer({"<pad>": True}, pad_token="<pad>"), "'<pad>' is token 32", "resize_token"),
        (tokenizer({f"<{number}>": True for number in range(29)}, pad_token="<new>"), "'<new>' is token 32", "resize_"),
        (tokenizer({"<|im_start|>": True}, chat_template="<|im_start|>"), "'<|im_start|>' is token 32", "resize_token"),
        ({"config.json": json.dumps(SIZES | {"vocab_size": 40}).encode()},
         r"vocab_size is 40, and model.embed_tokens.weight has 32 rows", "where vocab_size is the table's"),
        ({"tokenizer.json": None}, "the model has no tokenizer.json", "save_pretrained"),
        ({"tokenizer.json": None, "tokenizer.model": b"x"}, "only tokenizer.model", "save_pretrained"),
        ({"tokenizer.json": b"{"}, "not usable JSON", "replace it with the published one"),
        ({"tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE"}}'}, "not a tokenizer", "published one"),
        ({"config.json": json.dumps(SIZES | {"rope_scaling": {"type": "yarn"}}).encode()},
         "scales positions by yarn, and its rope_scaling or rope_parameters has no factor", "where it is corrected"),
        ({"config.json": json.dumps(SIZES | {"rope_parameters": {"full_attention": {"rope_type": "llama3"}}}).encode()},
         "by llama3, .* has no factor, low_freq_factor, high_freq_factor", "where it is corrected"),
        ({"config.json": json.dumps(SIZES | {"rope_scaling": "linear"}).encode()}, "says rope_scaling 'linear'", ""),
        ({"generation_config.json": b'{"eos_token_id": "</s>"}'}, "is no token's number", "replace it"),
    ],
    ids=["token", "padding", "new padding", "template", "vocab_size", "no tokenizer", "slow tokenizer", "torn",
         "no vocabulary", "no factor", "no factor in a layer", "no mapping", "end token"],
)  # fmt: skip
def test_what_would_end_a_stage_later_is_told_before_the_download(
    tmp_path: Path, changed: dict[str, bytes | None], problem: str, advice: str
):
    files = {name: data for name, data in (FILES | changed).items() if data is not None}
    with pytest.raises((ConfigError, IntegrityError, Unsupported), match=problem) as caught:
        facts_of(on_disk(tmp_path / "model", files))
    assert advice in caught.value.hint


def test_special_tokens_of_other_models_need_no_row(tmp_path: Path):
    """Gemma 3 of text alone keeps its siblings' token for an image, one beyond its embedding."""
    facts_of(on_disk(tmp_path / "model", FILES | tokenizer({"<image_soft_token>": True})))


def test_a_file_that_may_not_be_read_says_who_must_be_able_to() -> None:
    with directory_for_everyone() as root:
        (root / "config.json").write_text(json.dumps(SIZES))
        (root / "model.safetensors").write_bytes(weights(llama()))
        look = DirectorySource(root).look("demo/tiny", "main")
        with (
            without_root(root),
            mode(root / "config.json", 0),
            pytest.raises(SourceRefused, match="Permission denied") as caught,
        ):
            look.read("config.json", 0, 1)
    assert caught.value.where.endswith("/config.json")
    assert caught.value.hint == "make it readable for the user that runs this"
