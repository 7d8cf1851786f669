"""With signatures required, a pointer, a release record or a stage record that was edited is refused and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from deployment_here import place_document, write_bare_deployment
from place_here import serve
from signing_keys import edit_json
from store_history import GO, MODEL, NO_GO, TARGET, History

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary.router import Patience
from llm_pipeline.canary.slots import ServedPlace, SlotControl
from llm_pipeline.cli import main
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.store import Signing
from llm_pipeline.inspection.verification import verify_reference
from llm_pipeline.operations.rollback import roll_back
from llm_pipeline.operations.switching import start_production
from llm_pipeline.release.execute import results_name, stage_record_name
from llm_pipeline.release.record import release_record_name, trusted_record
from llm_pipeline.release.trusted_pointers import pointer_problem, require_served
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.place_state import Pointer, place_name, read_place
from llm_pipeline.store.references import resolve_reference
from llm_pipeline.store.signed_documents import replace_document

OTHER_MODEL = "other/model"
NO_SLOTS = cast("SlotControl", object())
"""Nothing may be asked of them."""


def _release(history: History, number: int) -> str:
    """A release as far as its repository."""
    release_id = history.resolve(number)
    weights = history.stage(
        release_id, "download", config={"model_id": MODEL, "commit": number}, produces=("checkpoint",)
    ).artifacts["checkpoint"]
    engine = history.stage(release_id, "build", TARGET, inputs={"checkpoint": weights}, produces=("engine",)).artifacts[
        "engine"
    ]
    history.stage(release_id, "package", TARGET, inputs={"engine": engine}, produces=("model_repository",))
    return release_id


class Site(History):
    """Two releases of one model, promoted one after the other."""

    def __init__(self, root: Path, signing: Signing | None) -> None:
        super().__init__(root, {"uri": f"file://{root / 'store'}", "signing": signing})
        self.first = _release(self, 1)
        self.settle(self.first)
        self.second = _release(self, 2)
        self.settle(self.second)

    @property
    def previous(self) -> Pointer:
        pointer = read_place(self.store, TARGET).previous
        assert pointer is not None
        return pointer

    def point_previous_to(self, repository: ArtifactRef) -> Pointer:
        """Edit the pointers, as anybody may who writes to the store."""
        pointers = read_place(self.store, TARGET)
        forged = self.previous.model_copy(update={"repository": repository})
        serve(self.store, MODEL, TARGET, pointers.production, previous=forged)
        return forged

    def edit(self, name: str, change: Callable[[dict], object]) -> None:
        edit_json(self.root / "store" / name, change)

    def problems_of(self, reference: str) -> dict[str, str]:
        verified = verify_reference(self.store, resolve_reference(self.store, reference))
        return {found.path: found.problem for one in verified for found in one.problems}


@pytest.fixture
def site(tmp_path: Path, signing: Signing) -> Site:
    return Site(tmp_path, signing)


class TestPointers:
    def test_what_was_not_packaged_for_the_model_and_target_is_refused(self, site: Site) -> None:
        def problem(pointer: Pointer, model_id: str = MODEL, target: str = TARGET) -> str:
            with pytest.raises(IntegrityError) as refused:
                require_served(site.store, model_id, target, pointer)
            return refused.value.message

        untouched = site.previous
        require_served(site.store, MODEL, TARGET, untouched)
        assert f"is of {MODEL}" in problem(untouched, OTHER_MODEL)
        assert "packaged nothing for h100" in problem(untouched, target="h100")
        for forged in (site.repository(_release(site, 3)), site.publish("checkpoint", "weights")):
            assert "packaged another repository" in problem(site.point_previous_to(forged))
        site.edit(results_name(site.first, "package", TARGET), lambda document: document.pop("signature"))
        assert "unsigned" in problem(untouched)

    def test_production_goes_back_to_nothing_forged_and_starts_nothing_forged(self, site: Site) -> None:
        place = TargetPlace.model_validate(place_document(iter(range(18541, 18561))))
        deployment = site.deployment.model_copy(update={"places": {TARGET: place}})
        site.point_previous_to(site.publish("checkpoint", "weights"))
        with pytest.raises(IntegrityError, match="is not served for"):
            roll_back(ServedPlace(site.store, MODEL, TARGET, None, NO_SLOTS, Patience()), by="anna")
        site.roll_back()
        with pytest.raises(IntegrityError, match="is not served for"):
            start_production(site.store, deployment, TARGET)

    def test_without_signatures_every_pointer_is_believed(self, tmp_path: Path) -> None:
        site = Site(tmp_path, None)
        assert pointer_problem(site.store, MODEL, TARGET, site.point_previous_to(site.publish("a", "b"))) is None


class TestReleases:
    def test_a_record_that_was_edited_ends_the_release(self, site: Site) -> None:
        def more_loss(document: dict) -> None:
            document["value"]["release"]["policy"]["accuracy"]["margin"] = 0.9

        site.edit(release_record_name(site.second), more_loss)
        with pytest.raises(IntegrityError, match="cannot be trusted"):
            ReleaseProgress.open(site.deployment, site.second)

    def test_the_record_of_another_release_is_refused(self, site: Site) -> None:
        first = json.loads((site.root / "store" / release_record_name(site.first)).read_text())
        site.edit(release_record_name(site.second), lambda document: document.update(first))
        with pytest.raises(IntegrityError, match="cannot be trusted"):
            trusted_record(site.store, site.second)

    def test_a_result_with_another_releases_artifact_ends_the_release(self, site: Site) -> None:
        theirs = site.repository(site.first)

        def swap(document: dict) -> None:
            document["value"]["artifacts"]["model_repository"] = theirs.model_dump()

        site.edit(results_name(site.second, "package", TARGET), swap)
        with pytest.raises(IntegrityError, match="cannot be trusted"):
            ReleaseProgress.open(site.deployment, site.second).artifact("package", TARGET, "model_repository")


class TestStagesThatPublishNothing:
    """They have nothing to sign with: what they say must follow from what is signed."""

    def _choose(self, site: Site, recipe: str) -> ReleaseProgress:
        result = site.stage(site.second, "choose", TARGET).model_copy(update={"metrics": {"recipe": recipe}})
        replace_document(site.store, results_name(site.second, "choose", TARGET), result.model_dump(mode="json"))
        return ReleaseProgress.open(site.deployment, site.second)

    def _judge(self, site: Site, judgement: Judgement) -> None:
        checkpoint = site.stage(site.second, "quantize", "fp8", produces=("checkpoint",)).artifacts["checkpoint"]
        site.stage(site.second, "accuracy", "fp8", inputs={"checkpoint": checkpoint}, judgement=judgement)

    @pytest.mark.parametrize(("recipe", "judgement"), [("fp8", GO), ("fp8", NO_GO), ("int4", NO_GO)])
    def test_only_a_chosen_recipe_that_passed_is_built(self, site: Site, recipe: str, judgement: Judgement) -> None:
        self._judge(site, judgement)
        flow = self._choose(site, recipe)
        if judgement is GO:
            assert flow.chosen_recipe(TARGET) == "fp8"
            return
        with pytest.raises(IntegrityError, match=f"{recipe} has not passed its accuracy gate"):
            flow.chosen_recipe(TARGET)


class TestVerifying:
    def test_an_untouched_release_is_whole(self, site: Site) -> None:
        assert site.problems_of(site.second) == {}
        assert site.problems_of(f"previous:{MODEL}/{TARGET}") == {}

    def test_a_stage_record_that_leads_to_other_signed_weights_is_damaged(self, site: Site, tmp_path, capsys) -> None:
        key = ReleaseProgress(site.store, trusted_record(site.store, site.second)).result("download").key
        theirs = ReleaseProgress(site.store, trusted_record(site.store, site.first)).artifact(
            "download", "", "checkpoint"
        )

        def swap(document: dict) -> None:
            document["value"]["conclusion"]["result"]["artifacts"]["checkpoint"] = theirs.model_dump()

        site.edit(stage_record_name(key), swap)
        assert list(site.problems_of(site.second)) == [stage_record_name(key)]
        signing = site.deployment.store.signing
        signed = f"{{uri: '{site.store.uri}', signing: {signing.model_dump_json()}}}"
        assert main(["verify", "-d", write_bare_deployment(tmp_path / "here.yaml", signed), site.second]) == 5
        output = capsys.readouterr().out
        assert "DAMAGED  document  stage record of download" in output
        assert output.splitlines()[-1] == "4 artifacts read, 1 damaged"

    @pytest.mark.parametrize("name", ["release.json", f"results/package.{TARGET}.json"])
    def test_a_document_of_the_release_without_its_signature_is_damaged(self, site: Site, name: str) -> None:
        path = f"releases/{site.second}/{name}"
        site.edit(path, lambda document: document.pop("signature"))
        assert "unsigned" in site.problems_of(site.second)[path]

    def test_a_pointer_to_something_else_is_damaged(self, site: Site) -> None:
        site.point_previous_to(site.publish("checkpoint", "weights"))
        assert list(site.problems_of(f"previous:{MODEL}/{TARGET}")) == [place_name(TARGET)]

    def test_without_signatures_the_record_of_another_key_is_damaged(self, tmp_path: Path) -> None:
        site = Site(tmp_path, None)
        keys = [
            ReleaseProgress(site.store, trusted_record(site.store, one)).result("download").key
            for one in (site.first, site.second)
        ]
        theirs = json.loads((tmp_path / "store" / stage_record_name(keys[0])).read_text())
        site.edit(stage_record_name(keys[1]), lambda document: document.update(theirs))
        assert "it is of stage key" in site.problems_of(site.second)[stage_record_name(keys[1])]
