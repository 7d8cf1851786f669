"""`llm-pipeline show`: one release or artifact in full."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import yaml

from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.text_table import readable_time
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.inspection.release_artifacts import readable_results, release_artifacts, standing_pauses, users_of
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import DamagedDocument
from llm_pipeline.store.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest, ManifestFile
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.references import Reference, readable_pointers, release_of
from llm_pipeline.store.seal import directory_of

_WIDTH = 160
"""Columns, before a text goes on in the next line."""


class _View(Frozen):
    """Something shown, as YAML for people.

    Attributes:
        damaged: Documents that would say more about it, and cannot be read.
    """

    damaged: tuple[DamagedDocument, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people."""
        yield from yaml.safe_dump(self._told(), sort_keys=False, allow_unicode=True, width=_WIDTH).splitlines()
        yield from map(str, self.damaged)

    def _told(self) -> dict[str, Any]:
        """What the lines have: what has no value is left out."""
        return self.model_dump(mode="json", exclude={"damaged"}, exclude_defaults=True, exclude_none=True)


class ReleaseView(_View):
    """A release: what was asked for, what came out.

    Attributes:
        pointers: Those that name it.
        overridden: What its last run has otherwise than the release config says, and who asked for that.
        pauses: Its canaries that are paused.
        config: The release config as resolved.
        results: In the order they ran.
        artifacts: By what they are to it.
    """

    release_id: str
    model: str
    commit: str
    license: str | None
    resolved_at: datetime
    deployment: str
    overridden: str = ""
    pointers: tuple[str, ...]
    pauses: tuple[str, ...] = ()
    config: ResolvedRelease
    results: tuple[StageResult, ...]
    artifacts: dict[str, ArtifactRef]

    def _told(self) -> dict[str, Any]:
        return {
            "release": self.release_id,
            "model": f"{self.model}@{self.commit}",
            "licence": self.license or "not stated",
            "resolved": f"{readable_time(self.resolved_at)} UTC, for deployment {self.deployment}",
            **({"overridden": self.overridden} if self.overridden else {}),
            "serves": ", ".join(self.pointers) or "nowhere",
            **({"canary": list(self.pauses)} if self.pauses else {}),
            "results": {f"{one.stage} {one.subject}".strip(): _result(one) for one in self.results},
            "artifacts": {name: str(ref) for name, ref in self.artifacts.items()},
            "config, without defaults": self.config.model_dump(mode="json", exclude_defaults=True),
        }


class ArtifactView(_View):
    """An artifact: its files, where it came from, who uses it.

    Attributes:
        signature: What is known of its signature, in words.
        users: Pointers and releases.
    """

    artifact: ArtifactRef
    bytes: int
    signature: str
    users: tuple[str, ...]
    provenance: Provenance
    files: tuple[ManifestFile, ...]


def show(store: ArtifactStore, reference: Reference) -> ReleaseView | ArtifactView:
    """Everything that the store holds about what a reference names; a pointer stands for its release.

    Raises:
        ConfigError: It is gone.
        IntegrityError: Its record or manifest cannot be understood.
    """
    if isinstance(reference, ArtifactRef):
        return _artifact(store, reference)
    return _release(ReleaseProgress(store, read_release_record(store, release_of(reference))))


def _release(flow: ReleaseProgress) -> ReleaseView:
    record = flow.record
    pointing, unreadable = readable_pointers(flow.store)
    results, damaged = readable_results(flow)
    pauses, unclear = standing_pauses(flow.store)
    return ReleaseView(
        release_id=record.release_id,
        model=record.model.id,
        commit=record.model.commit,
        license=record.model.license,
        resolved_at=record.created_at,
        deployment=record.deployment.name,
        overridden=record.overrides_in_words,
        pointers=tuple(str(item) for item in pointing if item.pointer.release_id == record.release_id),
        pauses=tuple(pauses.get(record.release_id, ())),
        config=record.release,
        results=tuple(results),
        artifacts=dict(release_artifacts(record, results)),
        damaged=(*damaged, *unreadable, *unclear),
    )


def _artifact(store: ArtifactStore, ref: ArtifactRef) -> ArtifactView:
    manifest = store.manifest(ref)
    users, damaged = users_of(store, ref)
    return ArtifactView(
        artifact=ref,
        bytes=manifest.size,
        signature=_signature(store, manifest),
        users=tuple(users),
        provenance=manifest.provenance,
        files=manifest.files,
        damaged=tuple(damaged),
    )


def _signature(store: ArtifactStore, manifest: Manifest) -> str:
    """Whether the manifest is signed, and whether by somebody whom the deployment trusts."""
    directory, required = directory_of(manifest.ref), store.signatures.required
    try:
        signature = store.read_file(f"{directory}/{SIGNATURE_FILE}")
    except FileNotFoundError:
        return "none, and one is required here" if required else "none"
    if not required:
        return "not checked: the deployment's store has no `signing`"
    statement = store.read_file(f"{directory}/{MANIFEST_FILE}")
    found = store.signatures.problems(manifest, statement, signature)
    return f"NOT VALID: {found[0].problem}" if found else "valid"


def _result(result: StageResult) -> str:
    """The verdict of a gate with its sentence, and what any other stage measured; what has no value is left out."""
    took = "reused" if result.reused else f"{result.timings.total_seconds:.1f} s"
    if result.judgement is not None:
        return f"{result.judgement.verdict}, {took}: {result.judgement.summary}"
    shown = {name: round(value, 4) if isinstance(value, float) else value for name, value in result.metrics.items()}
    return " ".join([took, *(f"{name}={value}" for name, value in shown.items() if value not in ("", None))])
