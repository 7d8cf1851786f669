"""With signatures required, whoever may write to the store but has no key cannot tell a release what was computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resolved_release import request_below
from signing_keys import edit_json

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.store import Signing, store_settings
from llm_pipeline.release import execute as execution
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageFailure, StageOutput, StageResult
from llm_pipeline.release.execute import results_name, stage_record_name, trusted_stage_record
from llm_pipeline.store import open_store
from llm_pipeline.store.signed_documents import require_signed

Document = dict[str, Any]
NO_GO = judge("too much is lost", [Evidence(name="loss", verdict=Verdict.NO_GO, measured=0.4, samples=9)])


class TextConfig(ConfigModel):
    text: str
    also: str = "also"


class Site:
    """A store, and a stage that makes two artifacts and says NO_GO; counts how often it really works."""

    def __init__(self, root: Path, signing: Signing | None) -> None:
        self.config = store_settings(uri=f"file://{root / 'store'}", signing=signing)
        self.store = open_store(self.config)
        self.root = root
        self.runs = 0
        self.stage = Stage(name="write", version=1, config=TextConfig, run=self._work)

    def _work(self, context: StageContext[TextConfig]) -> StageOutput:
        self.runs += 1
        made = {}
        for name, text in (("one", context.config.text), ("two", context.config.also)):
            directory = context.workdir / name
            directory.mkdir(exist_ok=True)
            (directory / "text").write_text(text)
            made[name] = Produced("text", directory)
        return StageOutput(artifacts=made, judgement=NO_GO)

    def execute(self, text: str, **inputs: ArtifactRef) -> StageResult | StageFailure:
        return execution.execute(request_below(self.root, "write", {"text": text}, inputs=inputs, store=self.config))

    def run(self, text: str = "mine") -> StageResult:
        outcome = self.execute(text)
        assert isinstance(outcome, StageResult), outcome
        return outcome

    def edit(self, name: str, change: Callable[[Document], object]) -> None:
        edit_json(self.root / "store" / name, change)

    def content(self, name: str) -> Document:
        return json.loads((self.root / "store" / name).read_text())


@pytest.fixture
def site(tmp_path: Path, signing: Signing, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path, signing)
    monkeypatch.setattr(execution, "load_stage", lambda _name: site.stage)
    return site


def _result(document: Document) -> Document:
    return document["value"]["conclusion"]["result"]


def _anothers_weights(document: Document, other: StageResult) -> None:
    _result(document)["artifacts"]["one"] = other.artifacts["one"].model_dump()


def _swapped_outputs(document: Document, _other: StageResult) -> None:
    made = _result(document)["artifacts"]
    made["one"], made["two"] = made["two"], made["one"]


def _passed(document: Document, _other: StageResult) -> None:
    judgement = _result(document)["judgement"]
    judgement["verdict"] = judgement["evidence"][0]["verdict"] = "GO"


def _other_inputs(document: Document, other: StageResult) -> None:
    document["value"]["conclusion"]["content"]["inputs"]["checkpoint"] = other.artifacts["one"].model_dump()


def _unsigned(document: Document, _other: StageResult) -> None:
    del document["value"]["conclusion"]["signature"]


FORGERIES = [_anothers_weights, _swapped_outputs, _passed, _other_inputs, _unsigned]


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_stage_record_that_was_edited_is_computed_again(site: Site, forge) -> None:
    other, mine = site.run("another release's"), site.run()
    site.edit(stage_record_name(mine.key), lambda document: forge(document, other))
    with pytest.raises(IntegrityError, match="cannot be trusted"):
        trusted_stage_record(site.store, mine.key)
    again = site.run()
    assert (again.reused, site.runs) == (False, 3)
    assert (again.artifacts, again.judgement) == (mine.artifacts, NO_GO)
    assert site.run().reused


def test_the_signed_record_of_another_key_is_no_record_of_this_one(site: Site) -> None:
    other, mine = site.run("another release's"), site.run()
    theirs = site.content(stage_record_name(other.key))
    site.edit(stage_record_name(mine.key), lambda document: document.update(theirs))
    assert not site.run().reused


def test_an_artifact_that_two_keys_came_to_is_reused_under_both(site: Site) -> None:
    """Equal content has one name and the provenance of whoever published it first."""
    first = site.run()
    site.stage = Stage(name="write", version=2, config=TextConfig, run=site._work)
    second = site.run()
    assert second.key != first.key
    assert second.artifacts == first.artifacts
    assert site.run().reused
    assert site.store.manifest(second.artifacts["one"]).provenance.stage_key == first.key


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (lambda directory: (directory / "text").write_text("other"), "text: changed"),
        (lambda directory: (directory / "sitecustomize.py").touch(), "sitecustomize.py"),
        (lambda directory: (directory / "_SIGNATURE.json").unlink(), "_SIGNATURE.json"),
    ],
)
def test_an_input_that_is_not_as_it_was_signed_stops_a_stage_before_it_does_anything(
    site: Site, tamper: Callable[[Path], object], named: str
) -> None:
    ref = site.run("the input").artifacts["one"]
    assert isinstance(site.execute("of a whole input", checkpoint=ref), StageResult)
    tamper(site.root / "store" / "artifacts" / ref.kind / ref.digest)
    outcome = site.execute("of a damaged input", checkpoint=ref)
    assert isinstance(outcome, StageFailure)
    assert (outcome.error.family, site.runs) == ("terminal", 2)
    assert named in outcome.error.message


@pytest.fixture
def unsigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path, None)
    monkeypatch.setattr(execution, "load_stage", lambda _name: site.stage)
    return site


@pytest.mark.parametrize("change", [{"key": "0" * 64}, {"stage": "quantize"}, {"subject": "fp8"}, None])
def test_without_signatures_a_record_that_contradicts_itself_is_computed_again(unsigned: Site, change) -> None:
    other, mine = unsigned.run("other"), unsigned.run()
    theirs = unsigned.content(stage_record_name(other.key))
    unsigned.edit(
        stage_record_name(mine.key),
        lambda document: _result(document).update(change) if change else document.update(theirs),
    )
    assert unsigned.run().artifacts == mine.artifacts
    assert unsigned.runs == 3


RESULT = results_name("r1", "write", "")


def test_a_result_is_signed_under_its_own_name_and_verified_without_the_private_half(site: Site, signing) -> None:
    site.run()
    reader = LocalStore(store_settings(uri=site.config.uri, signing=signing.model_copy(update={"private_key": None})))
    document = reader.read_document(RESULT)
    require_signed(reader, RESULT, document)
    with pytest.raises(IntegrityError, match="not what was signed under this name"):
        require_signed(reader, results_name("r2", "write", ""), document)


@pytest.mark.parametrize(
    "change",
    [
        lambda document, _: document["value"]["judgement"].update(verdict="GO"),
        lambda document, _: document["value"]["artifacts"].clear(),
        lambda document, _: document.pop("signature"),
        lambda document, _: document.update(signature={"a": 1}),
        lambda document, of_an_artifact: document.update(signature=of_an_artifact),
    ],
)
def test_a_result_that_was_edited_is_refused(site: Site, change) -> None:
    ref = site.run().artifacts["one"]
    signature = (site.root / "store" / "artifacts" / ref.kind / ref.digest / "_SIGNATURE.json").read_text()
    site.edit(RESULT, lambda document: change(document, signature))
    with pytest.raises(IntegrityError, match=f"{RESULT} cannot be trusted: .*"):
        require_signed(site.store, RESULT, site.store.read_document(RESULT))
