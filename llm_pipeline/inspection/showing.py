"""`llm-pipeline show`: one release, artifact, stage key or pointer in full."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import yaml
from pydantic import JsonValue

from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.canary.record import StandingPause
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.store import StoreModel
from llm_pipeline.inspection.release_artifacts import (
    SHOWN_DIGITS,
    DamagedRow,
    readable_results,
    release_artifacts,
    stage_record,
    standing_pauses,
    users_of,
)
from llm_pipeline.inspection.table import labelled, readable_time, titled_columns
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import KeyContent
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest, ManifestFile
from llm_pipeline.store.place_state import Pointer
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.references import (
    ArtifactReference,
    PointerReference,
    Reference,
    ReleaseReference,
    StageReference,
    readable_pointers,
)

_LONGEST_SUMMARY = 90


class NamedArtifact(Frozen):
    """An artifact and what it is to its release."""

    name: str
    artifact: ArtifactRef


class _View(Frozen, ABC):
    """Something shown.

    Attributes:
        damaged: Documents that would say more about it, and cannot be read.
    """

    damaged: tuple[DamagedRow, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people."""
        yield from self._facts()
        if self.damaged:
            yield from ("", *map(str, self.damaged))

    @abstractmethod
    def _facts(self) -> Iterator[str]:
        """Its own lines."""


class ReleaseView(_View):
    """A release: what was asked for, what came out.

    Attributes:
        pointers: Those that name it.
        overridden: What its last run has otherwise than the release config says, and who asked for that.
        pauses: Its canaries that are paused.
        config: The release config as resolved.
        results: In the order they ran.
    """

    release_id: str
    model: str
    commit: str
    license: str | None
    resolved_at: datetime
    deployment: str
    overridden: str = ""
    pointers: tuple[str, ...]
    pauses: tuple[StandingPause, ...] = ()
    config: dict[str, JsonValue]
    results: tuple[StageResult, ...]
    artifacts: tuple[NamedArtifact, ...]

    def _facts(self) -> Iterator[str]:
        facts = [
            ("release", self.release_id),
            ("model", f"{self.model}@{self.commit}"),
            ("licence", self.license or "not stated"),
            ("resolved", f"{readable_time(self.resolved_at)} UTC, for deployment {self.deployment}"),
            *([("overridden", self.overridden)] if self.overridden else []),
            ("serves", ", ".join(self.pointers) or "nowhere"),
            *(("canary", f"{pause.place} {pause}") for pause in self.pauses),
        ]
        yield from labelled(facts)
        yield from ("", "results")
        yield from _indented(_results_table(self.results))
        yield from ("", "artifacts")
        yield from _indented(
            titled_columns(("artifact", "is"), [(str(item.artifact), item.name) for item in self.artifacts])
        )
        yield from ("", "config, without defaults (`--json` shows them)")
        stated = ResolvedRelease.model_validate(self.config).model_dump(mode="json", exclude_defaults=True)
        yield from _indented(yaml.safe_dump(stated, sort_keys=False, allow_unicode=True).splitlines())


class ArtifactView(_View):
    """An artifact: its files, where it came from, who uses it.

    Attributes:
        signature: What is known of its signature, in words.
        users: Pointers and releases.
    """

    artifact: ArtifactRef
    bytes: int
    files: tuple[ManifestFile, ...]
    provenance: Provenance
    signature: str
    users: tuple[str, ...]

    def _facts(self) -> Iterator[str]:
        made = self.provenance
        facts = [
            ("artifact", f"{self.artifact.kind}/{self.artifact.digest}"),
            ("size", f"{byte_size(self.bytes)} in {len(self.files)} files"),
            ("signature", self.signature),
            ("made by", f"{made.stage} {made.subject}".strip()),
            ("stage key", made.stage_key),
            ("for release", made.release_id),
            ("inputs", ", ".join(f"{name} {ref}" for name, ref in made.inputs.items())),
            ("tools", _versions(made.tools)),
            ("by", made.made_by),
            ("container", made.container),
            ("source", made.source_commit),
            ("finished", readable_time(made.finished_at)),
        ]
        yield from labelled(facts)
        yield from ("", "used by")
        yield from _indented(list(self.users) or ["nothing"])
        yield from ("", "files")
        rows = [(file.path, byte_size(file.size), file.sha256) for file in self.files]
        yield from _indented(titled_columns(("path", "size", "sha256"), rows, right=("size",)))


class StageView(_View):
    """A stage key: what it hashed, and the result."""

    key: str
    content: KeyContent
    result: StageResult

    def _facts(self) -> Iterator[str]:
        content, result = self.content, self.result
        facts = [
            ("stage key", self.key),
            ("stage", f"{content.stage}/{content.version} {content.subject}".strip()),
            ("inputs", ", ".join(f"{name} {ref}" for name, ref in content.inputs.items())),
            ("tools", _versions(content.tools)),
            ("computed", f"{readable_time(result.timings.started_at)} UTC, for release {result.release_id}"),
            ("took", f"{result.timings.total_seconds:.1f} s"),
            ("verdict", f"{result.judgement.verdict}: {result.judgement.summary}" if result.judgement else ""),
            ("artifacts", ", ".join(f"{name} {ref}" for name, ref in result.artifacts.items())),
            ("metrics", ", ".join(f"{name}={value}" for name, value in result.metrics.items())),
        ]
        yield from labelled(facts)
        yield from ("", "config")
        yield from _indented(yaml.safe_dump(content.config, sort_keys=False, allow_unicode=True).splitlines())


class PointerView(_View):
    """A pointer."""

    pointer: str
    points_at: Pointer

    def _facts(self) -> Iterator[str]:
        at = self.points_at
        facts = [
            ("pointer", self.pointer),
            ("release", at.release_id),
            ("repository", f"{at.repository.kind}/{at.repository.digest}"),
            ("slot", at.slot),
            ("recipe", at.recipe),
            ("since", f"{readable_time(at.promoted_at)} UTC"),
        ]
        yield from labelled(facts)


View = ReleaseView | ArtifactView | StageView | PointerView


def show(config: StoreModel, reference: Reference) -> View:
    """Everything that the store holds about what a reference names.

    Raises:
        ConfigError: It is gone, or a stage key without a result.
        IntegrityError: Its record or manifest cannot be understood.
    """
    store = open_store(config)
    match reference:
        case ReleaseReference(release_id):
            return _release(ReleaseProgress(store, read_release_record(store, release_id)))
        case ArtifactReference(ref):
            return _artifact(store, config, ref)
        case StageReference(key):
            record = stage_record(store, key)
            return StageView(key=key, content=record.content, result=record.result)
        case PointerReference():
            return PointerView(pointer=str(reference), points_at=reference.pointer)


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
        config=record.release.model_dump(mode="json"),
        results=tuple(results),
        artifacts=tuple(NamedArtifact(name=name, artifact=ref) for name, ref in release_artifacts(record, results)),
        damaged=(*damaged, *(DamagedRow.of(one) for one in unreadable), *unclear),
    )


def _artifact(store: ArtifactStore, config: StoreModel, ref: ArtifactRef) -> ArtifactView:
    manifest = store.manifest(ref)
    users, damaged = users_of(store, ref)
    return ArtifactView(
        artifact=ref,
        bytes=manifest.size,
        files=manifest.files,
        provenance=manifest.provenance,
        signature=_signature(store, config, manifest),
        users=tuple(users),
        damaged=tuple(damaged),
    )


def _signature(store: ArtifactStore, config: StoreModel, manifest: Manifest) -> str:
    """Whether the manifest is signed, and whether by somebody whom the deployment trusts."""
    from llm_pipeline.store.signing import Signatures

    directory = f"artifacts/{manifest.kind}/{manifest.digest}"
    signing = config.signing
    try:
        signature = store.read_file(f"{directory}/{SIGNATURE_FILE}")
    except FileNotFoundError:
        return "none, and one is required here" if signing else "none"
    if signing is None:
        return "not checked: the deployment's store has no `signing`"
    statement = store.read_file(f"{directory}/{MANIFEST_FILE}")
    found = Signatures(signing).problems(manifest, statement, signature)
    return f"NOT VALID: {found[0].problem}" if found else "valid"


def _results_table(results: tuple[StageResult, ...]) -> list[str]:
    rows = [
        (
            f"{result.stage} {result.subject}".strip(),
            "reused" if result.reused else f"{result.timings.total_seconds:.1f} s",
            result.key[:SHOWN_DIGITS],
            result.judgement.verdict.value if result.judgement else "",
            result.judgement.summary if result.judgement else _begin(_facts(result.metrics)),
        )
        for result in results
    ]
    return titled_columns(("stage", "took", "key", "verdict", "summary"), rows, right=("took",))


def _facts(metrics: Mapping[str, Any]) -> str:
    """What was measured; what has no value is left out."""
    shown = {name: round(value, 4) if isinstance(value, float) else value for name, value in metrics.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items() if value not in ("", None))


def _begin(text: str) -> str:
    return text if len(text) <= _LONGEST_SUMMARY else f"{text[:_LONGEST_SUMMARY].rpartition(' ')[0]} ..."


def _versions(tools: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in tools.items())


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}".rstrip() for line in lines]
