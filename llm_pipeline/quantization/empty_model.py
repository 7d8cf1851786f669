"""A model without weights, as Transformers makes it of a configuration. Torch is imported by the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.checkpoint_loading import load_config
from llm_pipeline.base.errors import Unsupported


def empty_model(directory: Path) -> Any:
    """The causal language model of a checkpoint's config.json, on the meta device.

    Raises:
        Unsupported: Transformers makes none of it.
    """
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM

    try:
        config = load_config(directory)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        text = config.get_text_config()
        # as `from_pretrained` does: of a model of several parts, the text model alone where there is a class for it
        kind = AutoModelForCausalLM._model_mapping.get(type(config), None)  # noqa: SLF001 - the loader's own choice
        config = text if getattr(kind, "config_class", None) is type(text) else config
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError,
            RuntimeError, StrictDataclassError) as error:  # fmt: skip
        raise Unsupported(
            f"Transformers cannot build a model from this configuration: {error}",
            where=str(directory / "config.json"),
            hint="choose a model that the installed Transformers knows",
        ) from error
