"""`llm-pipeline diff`: what changed between two artifacts or two releases.

A stage of two releases was computed twice because something that its key hashes differs: `diff` says what, by dotted
path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, JsonValue

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.inspection.release_artifacts import SHOWN_DIGITS
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import read_stage_record
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.manifest import Manifest
from llm_pipeline.store.references import PointerReference, Reference, ReleaseReference

_MEASURED = (
    *("output_tokens_per_second", "acceptance_length", "token_cost_estimate", "gpu_memory_bytes"),
    *("recipe", "variant"),
)
_ABSENT = "(none)"
_LONGEST = 72
_LONG = 60
"""Characters of a text beyond which what it has in common with the other side is left out."""


class Change(Frozen):
    """One difference.

    Attributes:
        path: Where, e.g. `policy.accuracy.margin` or `recipes.fp8.weights`.
        before: The value on the first side; None also where it has none.
        after: The value on the second side; None also where it has none.
        kind: Which of the two sides have it.
    """

    path: str
    kind: Literal["added", "removed", "changed"]
    before: JsonValue = None
    after: JsonValue = None

    def __str__(self) -> str:
        first, second = (json.dumps(value, ensure_ascii=False) for value in (self.before, self.after))
        if self.kind == "changed" and min(len(first), len(second)) > _LONG:
            first, second = _from_where_they_differ(first, second)
        before = _ABSENT if self.kind == "added" else _shortened(first)
        after = _ABSENT if self.kind == "removed" else _shortened(second)
        return f"{self.path}: {before} -> {after}"


def changes(before: JsonValue, after: JsonValue, path: str = "") -> Iterator[Change]:
    """The differences of two values, in the order of the first.

    Items of a list are compared by their `name` where all have one, by position otherwise.
    """
    first, second = _by_name(before), _by_name(after)
    if first is None or second is None:
        if before != after or type(before) is not type(after):  # Python takes 1 and True for equal
            yield Change(path=path or ".", kind="changed", before=before, after=after)
        return
    for name in [*first, *(name for name in second if name not in first)]:
        place = f"{path}.{name}" if path else name
        if name not in second:
            yield Change(path=place, kind="removed", before=first[name])
        elif name not in first:
            yield Change(path=place, kind="added", after=second[name])
        else:
            yield from changes(first[name], second[name], place)


def _by_name(value: JsonValue) -> Mapping[str, JsonValue] | None:
    """The parts of a value by what they are called; None for a value without parts."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    names = [str(item["name"]) for item in value if isinstance(item, Mapping) and "name" in item]
    if len(set(names)) == len(value):
        return dict(zip(names, value, strict=True))
    return {str(position): item for position, item in enumerate(value)}


def _from_where_they_differ(first: str, second: str) -> tuple[str, str]:
    """Both without most of their common beginning: shortened alike, they could look the same."""
    alike = next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), _LONG)
    cut = alike - _LONG // 3
    return (f"...{first[cut:]}", f"...{second[cut:]}") if cut > 0 else (first, second)


def _shortened(text: str) -> str:
    """The text, its middle left out when it is long."""
    half = (_LONGEST - 3) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}...{text[-half:]}"


class Section(Frozen):
    """The changes of one part.

    Attributes:
        title: Which part, e.g. `files` or `quantize fp8`.
        note: Said instead of changes, or above them.
    """

    title: str
    note: str = ""
    changes: tuple[Change, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.title}: {self.note}".removesuffix(": ")
        yield from (f"  {change}" for change in self.changes)


class Comparison(Frozen):
    """How two things of one kind differ.

    Attributes:
        same: Whether nothing that is compared differs.
        sections: Parts with a difference, or with something to say.
    """

    first: str
    second: str
    same: bool
    sections: tuple[Section, ...]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.first} -> {self.second}" + (": the same" if self.same else "")
        for section in self.sections:
            yield from section.lines()


def compare(store: ArtifactStore, first: Reference, second: Reference) -> Comparison:
    """How two things differ.

    A pointer stands for its release, or beside an artifact for its model repository.

    Raises:
        ConfigError: They are of different kinds, or one has nothing to compare.
        IntegrityError: A record or manifest cannot be understood.
    """
    match _alike(first, second), _alike(second, first):
        case ArtifactRef() as one, ArtifactRef() as other:
            sections = _artifacts(store, one, other)
        case ReleaseReference(one), ReleaseReference(other):
            sections = _releases(_flow(store, one), _flow(store, other))
        case _:
            raise ConfigError(f"{first} and {second} are of different kinds", hint="compare two of one kind")
    said = tuple(section for section in sections if section.note or section.changes)
    return Comparison(first=str(first), second=str(second), same=not said, sections=said)


def _alike(reference: Reference, other: Reference) -> Reference:
    if not isinstance(reference, PointerReference):
        return reference
    if isinstance(other, ArtifactRef):
        return reference.pointer.repository
    return ReleaseReference(reference.pointer.release_id)


def _flow(store: ArtifactStore, release_id: str) -> ReleaseProgress:
    return ReleaseProgress(store, read_release_record(store, release_id))


def _artifacts(store: ArtifactStore, one: ArtifactRef, other: ArtifactRef) -> Iterator[Section]:
    first, second = store.manifest(one), store.manifest(other)
    yield _section("files", _files(first), _files(second))
    yield _section("provenance", _json(first.provenance), _json(second.provenance))


def _files(manifest: Manifest) -> dict[str, JsonValue]:
    return {file.path: f"{byte_size(file.size)} {file.sha256[:SHOWN_DIGITS]}" for file in manifest.files}


def _releases(first: ReleaseProgress, second: ReleaseProgress) -> Iterator[Section]:
    one, other = first.record, second.record
    yield _section("model", _commit(first), _commit(second))
    yield _section("config", _json(one.release), _json(other.release))
    yield _section("deployment", _json(one.deployment), _json(other.deployment))
    yield _section("datasets", _refs(one.datasets), _refs(other.datasets))
    results = first.results(), second.results()
    for stage in [*results[0], *(name for name in results[1] if name not in results[0])]:
        yield _stage(first.store, " ".join(stage).strip(), results[0].get(stage), results[1].get(stage))


def _commit(flow: ReleaseProgress) -> dict[str, JsonValue]:
    return {"id": flow.record.model.id, "commit": flow.record.model.commit}


def _stage(store: ArtifactStore, title: str, one: StageResult | None, other: StageResult | None) -> Section:
    if one is None or other is None:
        return Section(title=title, note=f"ran in the {'second' if one is None else 'first'} release only")
    outcome = tuple(changes(_outcome(one), _outcome(other)))
    if one.key == other.key:
        return Section(title=title, note="the same key, another outcome" if outcome else "", changes=outcome)
    records = read_stage_record(store, one.key), read_stage_record(store, other.key)
    if records[0] is None or records[1] is None:
        note = "the keys differ; what they hashed is not kept (it acts on the world, or it was removed)"
        return Section(title=title, note=note, changes=outcome)
    hashed = changes(_json(records[0].content), _json(records[1].content))
    return Section(title=title, note="the keys differ", changes=(*hashed, *outcome))


def _outcome(result: StageResult) -> dict[str, JsonValue]:
    judgement = result.judgement
    return {
        "verdict": judgement.verdict.value if judgement else None,
        "summary": judgement.summary if judgement else None,
        "artifacts": _refs(result.artifacts),
        "measured": {name: result.metrics[name] for name in _MEASURED if result.metrics.get(name) is not None},
    }


def _section(title: str, before: JsonValue, after: JsonValue) -> Section:
    return Section(title=title, changes=tuple(changes(before, after)))


def _refs(refs: Mapping[str, ArtifactRef]) -> dict[str, JsonValue]:
    return {name: str(ref) for name, ref in refs.items()}


def _json(model: BaseModel) -> JsonValue:
    dumped: JsonValue = model.model_dump(mode="json")
    return dumped
