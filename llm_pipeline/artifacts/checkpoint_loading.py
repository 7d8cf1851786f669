"""How this package's processes load checkpoints; no library opens one in any other way.

    tokenizer = load_tokenizer(checkpoint)
    model = load_causal_model(checkpoint, dtype=torch.bfloat16)

Before that, the directory is checked (`check_directory`), nothing is fetched, no code of the checkpoint runs, only
safetensors are read, and the kernel keeps the loader to the checkpoint's directory (`confined`). Code that Triton runs
cannot import this package: for it, the directory is checked when the server's view of a repository is laid out, and a
server of this host is confined as a whole (`serving/triton_server`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from llm_pipeline.artifacts.checkpoint_directory import check_directory
from llm_pipeline.artifacts.model_rules import read_model_rules
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.errors import IntegrityError, Unsupported

_Result = TypeVar("_Result")
_LONGEST_WORDS = 300
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def load_confined(directory: Path, load: Callable[[], _Result], *, scratch: Path | None = None) -> _Result:
    """What a library makes of a checkpoint or an engine, without leaving its directory.

    Args:
        directory: What is loaded.
        load: The library's call.
        scratch: Directory whose files the library may read again, such as its output; temporary files go there, too.

    Raises:
        IntegrityError: The directory's files lead out of it, or the library tried to read others.
    """
    check_directory(directory)
    try:
        with _temporary_files_in(scratch):
            return confined(load, readable=(directory,) if scratch is None else (directory, scratch))
    except PermissionError as error:
        raise IntegrityError(
            f"the loader tried to read {error.filename or 'another file, or the network'}: {error.strerror or error}",
            where=str(directory),
            hint="find out what names it; if the directory itself cannot be read, correct its permissions",
        ) from error


@contextmanager
def _temporary_files_in(scratch: Path | None) -> Iterator[None]:
    """Have this process make its temporary files in a directory; no change without one."""
    before = tempfile.tempdir
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(scratch)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _by_transformers(directory: Path) -> Iterator[None]:
    """Tell what Transformers raises at a configuration or a tokenizer that it does not know, which may be anything."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError,
            RuntimeError, StrictDataclassError) as error:  # fmt: skip
        raise Unsupported(
            f"Transformers cannot use this model: {str(error).partition(chr(10))[0][:_LONGEST_WORDS]}",
            where=str(directory),
            hint="choose a model that the installed Transformers knows; code of a model's repository is never run",
        ) from error


def load_config(directory: Path) -> Any:
    """A checkpoint's configuration, by Transformers.

    Raises:
        IntegrityError: As `load_confined`.
        Unsupported: Transformers cannot use it.
    """
    from transformers import AutoConfig

    with _by_transformers(directory):
        return load_confined(directory, lambda: AutoConfig.from_pretrained(directory, **_LOCAL))


def load_tokenizer(directory: Path) -> Any:
    """A checkpoint's tokenizer, by Transformers; see `load_config` for errors."""
    from transformers import AutoTokenizer

    with _by_transformers(directory):
        return load_confined(directory, lambda: AutoTokenizer.from_pretrained(directory, **_LOCAL))


def greedy_generation(directory: Path) -> Any:
    """How a checkpoint's answers are generated to be judged: greedy, without penalties, to any of its end tokens.

    What else generation_config.json asks for would shape the answers of models that Transformers loads, and no others.

    Returns:
        Transformers' generation config.

    Raises:
        IntegrityError: A file that names end tokens is malformed.
    """
    from transformers import GenerationConfig

    rules = read_model_rules(directory)
    return GenerationConfig(eos_token_id=list(rules.end_tokens) or None, pad_token_id=rules.pad_token)


def load_causal_model(directory: Path, **options: Any) -> Any:
    """A plain checkpoint as a causal language model in evaluation mode, to generate by `greedy_generation`.

    See `load_confined` for further errors.

    Args:
        directory: The checkpoint.
        options: More for `from_pretrained`: precision and devices.

    Raises:
        IntegrityError: It lacks tensors of the model, which Transformers would fill with random numbers.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model, report = load_confined(
        directory,
        lambda: AutoModelForCausalLM.from_pretrained(
            directory, use_safetensors=True, output_loading_info=True, **_LOCAL, **options
        ),
    )
    if missing := sorted(map(str, report["missing_keys"])):
        raise IntegrityError(
            f"{len(missing)} tensors of {type(model).__name__} are missing: {', '.join(missing[:5])}",
            where=str(directory),
            hint="fetch or export it again; if the publisher's own files are so, choose another revision",
        )
    model.generation_config = greedy_generation(directory)
    return model.eval()


def empty_model(directory: Path) -> Any:
    """The causal language model of a checkpoint's config.json, on the meta device.

    Raises:
        Unsupported: Transformers makes none of it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with _by_transformers(directory):
        config = load_config(directory)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        text = config.get_text_config()
        # as `from_pretrained` does: of a model of several parts, the text model alone where there is a class for it
        kind = AutoModelForCausalLM._model_mapping.get(type(config), None)  # noqa: SLF001 - the loader's own choice
        config = text if getattr(kind, "config_class", None) is type(text) else config
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def require_same_text(model: Path, checkpoint: Path) -> None:
    """Require the same vocabulary and the same chat template: answers are compared item by item.

    Layers and sizes are held against one another by their facts, in `plan` and when the checkpoint was fetched.

    Raises:
        IntegrityError: They are not; or one of them has no tokenizer that can be read.
    """
    ours, theirs = load_tokenizer(model), load_tokenizer(checkpoint)
    known, found = ours.get_vocab(), theirs.get_vocab()
    if known != found:
        differing = sorted(token for token in known.keys() | found.keys() if known.get(token) != found.get(token))
        raise _of_another_text(
            checkpoint, f"its vocabulary differs in {len(differing)} of {len(known)} tokens: {differing[:4]}"
        )
    if _stripped(ours.chat_template) != _stripped(theirs.chat_template):
        raise _of_another_text(checkpoint, "its chat template is another one")


def _stripped(template: object) -> object:
    """A template, or several by name, without the white space at their ends, which files add and lose."""
    if isinstance(template, dict):
        return {name: _stripped(one) for name, one in template.items()}
    return template.strip() if isinstance(template, str) else template


def _of_another_text(checkpoint: Path, what: str) -> IntegrityError:
    hint = "name a checkpoint with the tokenizer and the chat template of the release's model and revision"
    problem = f"the recipe's checkpoint is not asked as the model is: {what}"
    return IntegrityError(problem, where=str(checkpoint), hint=hint)
