"""Calibrations in the artifact store: made once, and found again by every attempt, machine and rung of a search.

A calibration's document, `calibrations/<key>.json`, is a lease with the artifact as its conclusion. Whoever needs the
same calibration while it is being made waits for it. It is published before anything is exported, so no failure after
it, and no kill, costs it again.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import lease_in_turn
from llm_pipeline.store.pending_deletion import publish_spared, spare
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.signed_documents import conclusion_problem, signed_conclusion

log = get_logger(__name__)

KIND = "calibration"
_FORMAT = 1
_TOOLS = ("nvidia-modelopt", "torch", "transformers")

Origin = Literal["computed", "restored"]


def calibration_key(
    recipe: QuantizationRecipe, checkpoint_digest: str, token_digest: str, dtype: str, settings: Any
) -> str:
    """SHA-256 in hex: same key, same calibration.

    The bits that a rung of a search asks for are no part of it, so all rungs share one calibration.

    Args:
        recipe: Its formats, search and batch size.
        checkpoint_digest: Digest of the checkpoint's artifact.
        token_digest: Digest of the exact token sequences.
        dtype: Precision that the checkpoint is loaded in.
        settings: What modelopt is told, as JSON.
    """
    search = recipe.search.model_dump(mode="json", exclude={"effective_bits"}) if recipe.search else None
    return sha256_json(
        {
            "format": _FORMAT,
            "checkpoint": checkpoint_digest,
            "tokens": token_digest,
            "batch_size": recipe.calibration.batch_size if recipe.calibration else None,
            "dtype": dtype,
            "settings": settings,
            "search": search,
            "tools": {tool: metadata.version(tool) for tool in _TOOLS},
        }
    )


def calibration_document(key: str) -> str:
    """Name of the document of a calibration."""
    return f"calibrations/{key}.json"


def shared_calibration(
    store: ArtifactStore, key: str, directory: Path, compute: Callable[[Path], None], provenance: Provenance
) -> tuple[Path, Origin]:
    """The files of a calibration: from the store, from an earlier attempt that was killed, or made now.

    Args:
        store: Where it is looked for and published.
        key: Everything that its outcome depends on, as a digest.
        directory: Where `compute` has to put it; it is there only when it is whole.
        compute: Makes it.
        provenance: Of the artifact.

    Returns:
        The directory that it is in, and whether it was computed now.
    """
    name = calibration_document(key)
    with lease_in_turn(store, name) as lease:
        if (found := _fetch(store, name, lease.conclusion)) is not None:
            return found, "restored"
        origin: Origin = "restored" if directory.is_dir() else "computed"
        if origin == "computed":
            compute(directory)
        ref = publish_spared(store, KIND, directory, provenance)
        lease.conclude(signed_conclusion(store, name, {"artifact": ref.model_dump(mode="json")}))
        log.info("calibration saved", artifact=str(ref), key=key[:12])
        return directory, origin


def _fetch(store: ArtifactStore, name: str, conclusion: dict[str, JsonValue] | None) -> Path | None:
    """What was concluded, unless it cannot be trusted, is removed, or is damaged: then it is made again."""
    if conclusion is None:
        return None
    if problem := conclusion_problem(store, name, conclusion):
        log.warning("a saved calibration cannot be trusted: making it again", reason=problem)
        return None
    try:
        ref = ArtifactRef.model_validate(conclusion.get("artifact"))
        if not (store.exists(ref) and spare(store, ref)):
            return None
        directory = store.fetch(ref)
    except (ValidationError, IntegrityError) as error:
        log.warning("a saved calibration cannot be used: making it again", reason=str(error))
        return None
    log.info("calibration restored from the store", artifact=str(ref))
    return directory
