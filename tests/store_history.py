"""Writes releases into a real store in the shapes that the stages leave behind, without running them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from place_here import canary_record, pointer, serve
from resolved_release import deployment_below, pinned, record_of, tiny_release

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.record import Phase, canary_record_name
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import Approval, Baseline, Evaluation, ModelSource, ResolvedRelease
from llm_pipeline.config.store import StoreModel
from llm_pipeline.release.claim import Claimant, ClaimState, LocalProcess, claim_name
from llm_pipeline.release.contract import StageResult, Timings
from llm_pipeline.release.execute import KeyContent, concluded, outdate_summary, results_name, stage_record_name
from llm_pipeline.release.newest import note_release
from llm_pipeline.release.record import release_record_name
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import read_place
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.signed_documents import replace_document, write_signed

MODEL = "demo/tiny"
TARGET = "cpu"
GO = judge("fine", [Evidence(name="loss", verdict=Verdict.GO, measured=0.0, samples=9)])
NO_GO = judge("too much is lost", [Evidence(name="loss", verdict=Verdict.NO_GO, measured=0.4, samples=9)])


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        self._store, self.asked = store, Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._store, name)


class History:
    """A deployment's store and what happened in it.

    `now` is the time that stages are given; artifacts are published at the real time.
    """

    def __init__(self, root: Path, store: StoreModel | str | None = None, **rules: float) -> None:
        self.root = root
        self.deployment = deployment_below(root, retention=rules, **({"store": store} if store else {}))
        self.store: ArtifactStore = open_store(self.deployment.store)
        self.now = datetime.now(UTC)

    def publish(self, kind: str, text: str, provenance: Provenance | None = None) -> ArtifactRef:
        directory = self.root / "made" / kind / text
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "content").write_text(f"{kind} {text}\n")
        return self.store.publish(kind, directory, provenance)

    def resolve(self, number: int, config: str = "tiny", margin: float = 0.01) -> str:
        """A release of commit `number`; the same number again is another run of the same release."""
        release_id = f"{config}-{number:08x}-{int(margin * 1e4):08x}"
        record = record_of(
            self.deployment,
            release_id,
            release=_release(config, margin),
            model=pinned(MODEL, commit=f"{number:040x}"),
            datasets={"prompts": self.publish("dataset", "prompts")},
            created_at=self.now,
        )
        write_signed(self.store, release_record_name(release_id), record.model_dump(mode="json"))
        note_release(self.store, record)
        outdate_summary(self.store, release_id)
        return release_id

    def stage(
        self,
        release_id: str,
        stage: str,
        subject: str = "",
        *,
        inputs: dict[str, ArtifactRef] | None = None,
        config: dict | None = None,
        produces: Sequence[str] = (),
        content: str = "",
        judgement: Judgement | None = None,
    ) -> StageResult:
        """A stage's record and its result in the release; `produces` are kinds of artifacts."""
        hashed = KeyContent(
            stage=stage,
            version=1,
            subject=subject,
            config=config or {"of": release_id.partition("-")[2]},
            inputs=inputs or {},
            tools={"tool": "1.0"},
        )
        made = Provenance(
            stage=f"{stage}/1",
            subject=subject,
            stage_key=hashed.key,
            release_id=release_id,
            config=hashed.config,
            inputs=hashed.inputs,
        )
        text = content or f"{stage}-{release_id}"
        result = StageResult(
            release_id=release_id,
            stage=stage,
            subject=subject,
            key=hashed.key,
            artifacts={kind: self.publish(kind, text, made) for kind in produces},
            judgement=judgement,
            timings=Timings(started_at=self.now, total_seconds=1.0),
        )
        with Lease(self.store, stage_record_name(hashed.key)) as lease:
            lease.conclude(concluded(self.store, hashed, result))
        write_signed(self.store, results_name(release_id, stage, subject), result.model_dump(mode="json"))
        return result

    def release(self, number: int, config: str = "tiny") -> str:
        """A whole release, up to its packaged repository and its report."""
        release_id = self.resolve(number, config)
        self.stage(release_id, "download", produces=("checkpoint",))
        self.stage(release_id, "accuracy", "fp8", judgement=GO)
        self.stage(release_id, "package", TARGET, produces=("model_repository",))
        self.report(release_id)
        return release_id

    def report(self, release_id: str) -> None:
        self.store.write_file(f"releases/{release_id}/report.html", b"<html>")
        self.stage(release_id, "report", config={"at": self.now.isoformat()})

    def repository(self, release_id: str) -> ArtifactRef:
        document = self.store.read_document(results_name(release_id, "package", TARGET))
        assert document is not None
        return StageResult.model_validate(document.value).artifacts["model_repository"]

    def settle(self, release_id: str) -> None:
        pointers = read_place(self.store, TARGET)
        now = pointer(release_id, repository=self.repository(release_id), recipe="fp8", promoted_at=self.now)
        serve(self.store, MODEL, TARGET, now, previous=pointers.production)

    def roll_back(self) -> None:
        pointers = read_place(self.store, TARGET)
        if pointers.previous is not None:
            serve(self.store, MODEL, TARGET, pointers.previous, previous=pointers.production)

    def canary(self, release_id: str) -> None:
        made = {"repository": self.repository(release_id), "phase": Phase.BAKING, "began_at": time.time()}
        record = canary_record(release_id, TARGET, **made)
        replace_document(self.store, canary_record_name(release_id, TARGET), record.model_dump(mode="json"))

    def claim(self, release_id: str | None, config: str = "tiny", *, silent_hours: float = 0.0) -> None:
        """Let a release hold the model's claim: None gives it back, an empty id has not been resolved yet."""
        heard = self.now - timedelta(hours=silent_hours)
        holder = Claimant(
            party=LocalProcess(host="elsewhere", pid=1, start_ticks=1, pids="", run="r"),
            release=config,
            release_id=release_id or "",
            since=heard,
            renewed_at=heard,
            stale_after_hours=48.0,
        )
        state = ClaimState(holder=None if release_id is None else holder)
        replace_document(self.store, claim_name(MODEL), state.model_dump(mode="json"))

    def pass_days(self, days: float) -> None:
        self.now += timedelta(days=days)

    def artifacts_of(self, release_id: str) -> set[ArtifactRef]:
        names = self.store.list_documents(f"releases/{release_id}/results")
        documents = [self.store.read_document(name) for name in names]
        results = [StageResult.model_validate(document.value) for document in documents if document]
        return {ref for result in results for ref in result.artifacts.values()}

    def names(self) -> set[str]:
        """Every document and artifact there is."""
        prefixes = ("releases", "stages", "places", "leases", "runs")
        documents = {name for prefix in prefixes for name in self.store.list_documents(prefix)}
        return documents | {f"{stored.ref.kind}/{stored.ref.digest}" for stored in self.store.artifacts()}


def _release(config: str, margin: float) -> ResolvedRelease:
    release = tiny_release(
        name=config,
        description="",
        model=ModelSource(id=MODEL),
        baseline=Baseline(),
        recipes=(QuantizationRecipe(name="fp8", weights="int8_weight_only"),),
        evaluation=Evaluation(tasks=("reading",), served_tasks=("reading",)),
        approval=Approval(),
    )
    accuracy = release.policy.accuracy.model_copy(update={"margin": margin})
    policy = release.policy.model_copy(update={"name": "strict", "accuracy": accuracy})
    return release.model_copy(update={"policy": policy})


def a_refused_and_a_serving_release(history: History) -> tuple[str, str]:
    """The ids of a release that a load test refused, and of a newer one of the same config that serves."""
    refused = history.resolve(1)
    history.stage(refused, "accuracy", "fp8", judgement=GO)
    history.stage(refused, "load_test", "cpu", judgement=NO_GO)
    history.pass_days(1)
    serving = history.release(2)
    history.settle(serving)
    return refused, serving
