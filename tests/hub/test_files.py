from __future__ import annotations

import pytest

from llm_pipeline.artifacts.model_files import select_files, unsafe_reason
from llm_pipeline.base.errors import IntegrityError, Unsupported

LLAMA = [
    ".gitattributes", "LICENSE", "README.md", "USE_POLICY.md", "config.json", "generation_config.json",
    "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    "original/consolidated.00.pth", "original/params.json", "original/tokenizer.model", "special_tokens_map.json",
    "tokenizer.json", "tokenizer_config.json", "adapter_config.json", "adapter_model.safetensors",
    "consolidated.safetensors",
]  # fmt: skip


UNSAFE = {
    "parents": ["../outside", "..", "a/../../b", "a/..", "../../../etc/passwd", "folder/../../../etc/passwd"],
    "backslashes": ["..\\outside", "C:\\Windows\\evil", "\\\\attacker\\share\\evil", "a\\b"],
    "absolute": ["/etc/passwd", "//server/share", "/"],
    "empty and dot segments": ["", "./a", "a/.", "a//b", "a/"],
    "control characters": ["a\0b", "a\nb", "a\rb", "a\tb", "a\x1b[2Jb", "a\x7fb", "a\x85b"],
    "invisible and reordering": ["a\u202eb", "a\u200bb", "a\u2066b", "a\u2028b", "a\ufeffb", "a\ud800b", "a\u00a0b"],
    "too long": ["x" * 300, "\u00e9" * 200, "a/" * 600 + "b"],
}


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=f"{kind}: {path[:40]!a}") for kind, paths in UNSAFE.items() for path in paths]
)
def test_a_path_that_could_leave_its_directory_is_unsafe(path: str) -> None:
    assert unsafe_reason(path) is not None


def test_a_file_that_is_listed_twice_condemns_the_repository() -> None:
    with pytest.raises(IntegrityError, match=r"twice: \['x.png'\]"):
        select_files(["config.json", "model.safetensors", "x.png", "x.png"])


@pytest.mark.parametrize(
    "odd",
    [
        ["assets/10:30.png"], ["~backup.txt"], ["READ ME .md"], ["a\u200bb.md"], ["README.md", "readme.md"],
        ["CONFIG.JSON", "config.json."], ["\uff0e\uff0e/x.json"],
    ],
    ids=ascii,
)  # fmt: skip
def test_odd_names_of_files_that_are_never_fetched_do_no_harm(odd: list[str]) -> None:
    selection = select_files(["config.json", "model.safetensors", *odd])
    assert selection.fetched == ("config.json", "model.safetensors")
    assert set(odd) <= set(selection.skipped)


def test_formats_that_run_code_or_unpack_into_anything_are_refused_by_name() -> None:
    names = ["w.bin", "w.pt", "w.pth", "w.ckpt", "w.pkl", "w.h5", "w.npz", "x.py", "x.so", "x.ipynb", "x.zip", "x.nemo"]
    selection = select_files(["config.json", "model.safetensors", *names])
    assert set(selection.refused) == set(names)


def test_vocabularies_templates_and_tokenizers_are_fetched() -> None:
    names = {"vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "qwen.tiktoken"}
    templates = {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"}
    assert names | templates <= set(select_files(["config.json", "model.safetensors", *names, *templates]).fetched)


def test_weights_configuration_and_tokenizer_are_fetched_and_nothing_else() -> None:
    selection = select_files(LLAMA)
    assert selection.fetched == (
        "config.json", "generation_config.json", "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors", "model.safetensors.index.json", "special_tokens_map.json",
        "tokenizer.json", "tokenizer_config.json",
    )  # fmt: skip
    assert set(selection.refused) == {"original/consolidated.00.pth"}
    assert set(selection.skipped) == set(LLAMA) - set(selection.fetched) - set(selection.refused)


def test_a_repository_with_only_pickles_is_refused_and_says_why() -> None:
    with pytest.raises(Unsupported, match=r"can run code: \['pytorch_model.bin'\]"):
        select_files(["config.json", "pytorch_model.bin"])


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ("model-Q4_K_M.gguf", "for other programs"),
        ("onnx/model.onnx_data", "for other programs"),
        ("unet/diffusion_pytorch_model.safetensors", "a model in parts"),
        ("llama.nemo", "archives"),
    ],
)
def test_weights_of_another_kind_are_named(weights: str, found: str) -> None:
    with pytest.raises(Unsupported, match=rf"no safetensors file at its top; .*{found}.*{weights}"):
        select_files(["config.json", "README.md", weights])


def test_an_adapter_is_not_a_model() -> None:
    with pytest.raises(Unsupported, match=r"config\.json") as caught:
        select_files(["adapter_config.json", "adapter_model.safetensors"])
    assert "merged" in caught.value.hint


def test_a_second_copy_in_shards_goes_with_its_index() -> None:
    """As mistralai publishes its larger models."""
    ours = ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    copy = ["consolidated-00001-of-00001.safetensors", "consolidated.safetensors.index.json"]
    selection = select_files([*ours, *copy])
    assert selection.fetched == tuple(ours)
    assert set(selection.skipped) == set(copy)
