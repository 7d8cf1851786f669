"""Tensors that published checkpoints hold beside the model's own, which its loaders leave out. Without torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class KnownExtra(NamedTuple):
    """Tensors that may be left out.

    Attributes:
        pattern: Regular expression of their whole names.
        reason: Why they are harmless, and who says so.
    """

    pattern: str
    reason: str


_ROTARY = KnownExtra(
    r"(.+\.)?rotary_emb\.inv_freq",
    "frequencies of each layer, computed from the configuration since Transformers 4.31 and left out by its loader "
    "(modeling_utils.py, _adjust_missing_and_unexpected_keys)",
)
_MASKS = "the causal mask, a constant that Transformers 4 before 4.31 stored as a buffer"
_GPT2_MASKS = KnownExtra(r"(transformer\.)?h\.\d+\.(attn|crossattention)\.(bias|masked_bias)", _MASKS)

KNOWN_EXTRAS: Mapping[str, tuple[KnownExtra, ...]] = {
    "gpt2": (_GPT2_MASKS,),
    "gpt_bigcode": (_GPT2_MASKS,),
    "gptj": (_GPT2_MASKS,),
    "gpt_neo": (KnownExtra(r"(transformer\.)?h\.\d+\.attn\.attention\.(bias|masked_bias)", _MASKS),),
    "gpt_neox": (KnownExtra(r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias)", _MASKS), _ROTARY),
    "codegen": (KnownExtra(r"(transformer\.)?h\.\d+\.attn\.(causal_mask|bias|masked_bias)", _MASKS),),
}
"""By `model_type`. They replace Transformers' own list, whose `attn.bias` also fits the bias of `c_attn`."""


def unknown_extras(
    names: Iterable[str], model_type: str, left_out_by_class: Iterable[str], *, computes_rotary: bool
) -> list[str]:
    """The names that no rule explains, sorted.

    Args:
        names: Tensors that are not the model's.
        model_type: The model's, as its configuration states it.
        left_out_by_class: Regular expressions of Transformers' own list for the model's class
            (`_keys_to_ignore_on_load_unexpected`: layers for multi-token prediction, for one).
        computes_rotary: The model computes rotary frequencies itself.
    """
    if model_type in KNOWN_EXTRAS:
        whole = [extra.pattern for extra in KNOWN_EXTRAS[model_type]]
    else:
        whole = [_ROTARY.pattern] if computes_rotary else []
        whole += [rf".*(?:{pattern}).*" for pattern in left_out_by_class]
    return sorted(name for name in names if not any(re.fullmatch(pattern, name) for pattern in whole))
