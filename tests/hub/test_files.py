from __future__ import annotations

import pytest

from llm_pipeline.errors import IntegrityError, Unsupported
from llm_pipeline.hub.files import select_files, unsafe_reason

LLAMA = [
    ".gitattributes", "LICENSE", "README.md", "USE_POLICY.md", "config.json", "generation_config.json",
    "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    "original/consolidated.00.pth", "original/params.json", "original/tokenizer.model", "special_tokens_map.json",
    "tokenizer.json", "tokenizer_config.json",
]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "../outside", "..", "a/../../b", "a/..", "./a", "a//b", "/etc/passwd", "//server/share", "..\\outside",
        "a\\b", "C:\\windows", "C:/windows", "c:relative", "\\\\server\\share\\x", "~/x", "-rf", "a/-rf", "a\nb",
        "a\0b", "a /b", "a./b", "", "x" * 300, "a/" * 600 + "b", "a\u202eb",
    ],
)  # fmt: skip
def test_a_path_that_could_leave_its_directory_is_unsafe(path: str) -> None:
    assert unsafe_reason(path) is not None


@pytest.mark.parametrize("path", ["config.json", "a/b/c.json", ".gitattributes", "model-00001-of-00002.safetensors"])
def test_an_ordinary_path_is_safe(path: str) -> None:
    assert unsafe_reason(path) is None


def test_one_unsafe_name_condemns_the_whole_repository() -> None:
    with pytest.raises(IntegrityError, match=r"unsafe name, '\.\./\.\./x'"):
        select_files(["config.json", "model.safetensors", "../../x"], where="a/b@main")


def test_two_names_that_differ_only_in_case_condemn_the_repository() -> None:
    with pytest.raises(IntegrityError, match="differ"):
        select_files(["config.json", "Config.json", "model.safetensors"])


def test_weights_configuration_and_tokenizer_are_fetched_and_nothing_else() -> None:
    selection = select_files(LLAMA)
    assert selection.fetched == (
        "config.json", "generation_config.json", "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors", "model.safetensors.index.json", "special_tokens_map.json",
        "tokenizer.json", "tokenizer_config.json",
    )  # fmt: skip
    assert set(selection.refused) == {"original/consolidated.00.pth"}
    assert set(selection.skipped) == set(LLAMA) - set(selection.fetched) - set(selection.refused)


def test_pickles_beside_safetensors_are_left_where_they_are() -> None:
    selection = select_files(["config.json", "model.safetensors", "pytorch_model.bin", "modeling_x.py", "x.tar.gz"])
    assert selection.fetched == ("config.json", "model.safetensors")
    assert set(selection.refused) == {"pytorch_model.bin", "modeling_x.py", "x.tar.gz"}


def test_a_repository_with_only_pickles_is_refused_and_says_why() -> None:
    with pytest.raises(Unsupported, match=r"can run code: \['pytorch_model.bin'\]"):
        select_files(["config.json", "pytorch_model.bin"])


def test_a_repository_without_weights_is_refused() -> None:
    with pytest.raises(Unsupported, match="no weights"):
        select_files(["config.json", "README.md"])


def test_an_adapter_is_not_a_model() -> None:
    with pytest.raises(Unsupported, match=r"config\.json") as caught:
        select_files(["adapter_config.json", "adapter_model.safetensors"])
    assert "merged" in caught.value.hint


def test_the_second_copy_of_the_weights_is_skipped() -> None:
    selection = select_files(["config.json", "model.safetensors", "consolidated.safetensors"])
    assert selection.fetched == ("config.json", "model.safetensors")


def test_a_consolidated_file_alone_is_the_model() -> None:
    assert "consolidated.safetensors" in select_files(["config.json", "consolidated.safetensors"]).fetched
