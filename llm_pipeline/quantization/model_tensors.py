"""Whether a checkpoint holds exactly the tensors of the model that its configuration describes.

Transformers fills what a checkpoint lacks with random numbers, and only warns. Here the model is made on the meta
device, which takes no memory, and what the headers of the weight files state goes through Transformers' own mapping
of names:

    require_model_tensors(directory)

Torch and Transformers are imported by the call, so that a builder of engines can be imported without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llm_pipeline.artifacts.checkpoint_files import read_quantization
from llm_pipeline.artifacts.checkpoint_loading import empty_model
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.hub.checkpoint import read_tensors

if TYPE_CHECKING:
    from llm_pipeline.artifacts.safetensors_header import TensorEntry
    from llm_pipeline.quantization.loader_mapping import Placement

_LISTED = 5
_HALF_TYPES = frozenset({"BF16", "F16"})
_PLAIN_TYPES = _HALF_TYPES | {"F32"}
_ADMITTED = {"bfloat16": frozenset({"BF16", "F32"}), "float16": frozenset({"F16", "F32"})}
"""By the precision that config.json states. Norms, routers and biases are often kept in F32 beside it; the other half
type never is: read as the wrong one of the two, every number is another. Where F32 or nothing is stated, any of the
three may be, but not both half types. Integers and eight-bit floats are no plain weights."""

_HINT = (
    "nothing was loaded: a loader would fill what is missing with random numbers. Fetch or export it again; if the "
    "publisher's own files are so, choose another revision"
)


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


def require_model_tensors(directory: Path) -> None:
    """Check names, shapes and types of a checkpoint's tensors, plain or exported by modelopt; reads headers only.

    Tied weights may be stored once or, with the same values, twice; what `KNOWN_EXTRAS` names may be there.

    Raises:
        IntegrityError: Tensors are missing, are not the model's, or have another shape or type; each kind is named.
        Unsupported: Transformers does not know the model, or this package its quantization.
    """
    plain, metadata = read_tensors(directory), read_quantization(directory)
    model, matrices = empty_model(directory), dict[str, tuple[int, ...]]()
    if metadata.algorithm is not None:
        from llm_pipeline.quantization.export_structure import packed_matrices

        packed, stored = packed_matrices(directory, model)
        matrices |= packed
        plain = {name: tensor for name, tensor in plain.items() if name not in stored}
    _require(model, directory, plain, matrices)


def refuse_initialised(report: Mapping[str, Any], directory: Path) -> None:
    """Refuse a model that the loader completed with numbers of its own: the second line behind the headers.

    `report` is what `from_pretrained(..., output_loading_info=True)` returns beside the model.

    Raises:
        IntegrityError: Tensors were missing.
    """
    if missing := sorted(map(str, report["missing_keys"])):
        raise IntegrityError("; ".join(_listed("missing", missing)), where=str(directory), hint=_HINT)


def _require(
    model: Any, directory: Path, plain: Mapping[str, TensorEntry], matrices: dict[str, tuple[int, ...]]
) -> None:
    from llm_pipeline.quantization.loader_mapping import place

    placement = place(model, {name: tensor.shape for name, tensor in plain.items()} | matrices)
    problems = [*_name_problems(model, placement), *_type_problems(model, placement, plain)]
    if not problems:
        problems = [*_tie_problems(directory, placement)]
    if problems:
        raise IntegrityError(
            f"the weights are not those of {type(model).__name__}: {'; '.join(problems)}",
            where=str(directory),
            hint=_HINT,
        )


def _name_problems(model: Any, placement: Placement) -> Iterator[str]:
    left_out = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    computes = any(name.endswith("rotary_emb.inv_freq") for name, _ in model.named_buffers())
    surplus = _unknown_extras(placement.unexpected, model.config.model_type, left_out, computes_rotary=computes)
    yield from _listed("missing", placement.missing)
    yield from _listed("not the model's", surplus)
    yield from _listed("stored twice under different names", placement.repeated)
    yield from _listed("of a numbered series with gaps", placement.gaps)
    yield from _listed(
        "of another shape",
        [f"{name} is {list(found)}, the model's is {list(wanted)}" for name, found, wanted in placement.misshaped],
    )
    yield from _listed("not convertible", placement.inconvertible)


def _type_problems(model: Any, placement: Placement, plain: Mapping[str, TensorEntry]) -> Iterator[str]:
    config = model.config.get_text_config()
    stated = str(getattr(config, "dtype", None) or getattr(model.config, "dtype", None)).removeprefix("torch.")
    admitted = _ADMITTED.get(stated, _PLAIN_TYPES)
    floats = {name: plain[name].dtype for name in placement.floats if name in plain}
    wrong = [f"{name} is {kind}" for name, kind in floats.items() if kind not in admitted]
    yield from _listed(f"not {' or '.join(sorted(admitted))} (config.json states {stated})", wrong)
    if not wrong and set(floats.values()) >= _HALF_TYPES:
        fewer = min(_HALF_TYPES, key=lambda kind: (list(floats.values()).count(kind), kind))
        yield from _listed(f"{fewer} among others", [name for name, kind in floats.items() if kind == fewer])


def _tie_problems(directory: Path, placement: Placement) -> Iterator[str]:
    """Where both are stored and differ, Transformers uses both, and engines use one of them for the other."""
    from llm_pipeline.artifacts.quantized_checkpoint import StoredTensors

    if not placement.stored_ties:
        return
    stored = StoredTensors(directory)
    different = [f"{one} and {other}" for one, other in placement.stored_ties if not stored.same_values(one, other)]
    yield from _listed("tied by config.json, but stored with different values", different)


def _listed(problem: str, names: list[str] | tuple[str, ...]) -> Iterator[str]:
    if names:
        shown = ", ".join(name[:200] for name in names[:_LISTED])
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        yield f"{len(names)} {'tensor is' if len(names) == 1 else 'tensors are'} {problem}: {shown}{more}"


def _unknown_extras(
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
