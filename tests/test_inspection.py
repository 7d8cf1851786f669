"""`ls`, `show`, `verify` and `diff` on a real store, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployment_here import write_bare_deployment
from place_here import canary_record
from signing_keys import signing_with_new_keys
from store_history import MODEL, NO_GO, TARGET, History

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.record import CanaryJournal, Phase, canary_record_name
from llm_pipeline.cli import main
from llm_pipeline.config.store import Signing
from llm_pipeline.inspection.showing import show
from llm_pipeline.release.record import release_record_name
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import PauseRequest, edit_place
from llm_pipeline.store.references import resolve_reference


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> History:
    """Two releases in production one after the other; the second with another margin, whose gate said no at first."""
    history = History(tmp_path_factory.mktemp("history"))
    first = history.release(1)
    history.settle(first)
    history.pass_days(1)
    second = history.resolve(2, margin=0.05)
    history.stage(second, "download", produces=("checkpoint",), content="new weights")
    history.stage(second, "accuracy", "fp8", judgement=NO_GO)
    history.stage(second, "package", TARGET, produces=("model_repository",), content="new repository")
    history.settle(second)
    return history


@pytest.fixture
def run(history: History, tmp_path: Path, capsys, monkeypatch):
    """Runs a command in a deployment file's surroundings; returns exit code, output and error."""
    here = write_bare_deployment(tmp_path / "here.yaml", history.store.uri)
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", here)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


FIRST, SECOND = "tiny-00000001-00000064", "tiny-00000002-000001f4"


def ref_of(history: History, release_id: str, kind: str):
    return next(ref for ref in history.artifacts_of(release_id) if ref.kind == kind)


class TestReferences:
    def test_a_release_an_artifact_and_a_pointer_by_their_names_or_the_beginning_of_them(self, history):
        ref = ref_of(history, FIRST, "checkpoint")
        for text in (FIRST, "tiny-00000001"):
            assert str(resolve_reference(history.store, text)) == FIRST
        for text in (f"checkpoint/{ref.digest}", f"checkpoint/{ref.digest[:6]}", ref.digest[:10]):
            assert resolve_reference(history.store, text) == ref
        assert resolve_reference(history.store, f"previous:{MODEL}/{TARGET}").pointer.release_id == FIRST

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("tiny-", f"'tiny-' fits {FIRST}, {SECOND}"),
            ("tinny-00000001", FIRST),
            ("checkpoint/123", "give at least 6 digits of a digest"),
            ("checkpoint/123456", "there is checkpoint/"),
            ("0123456", "no release or artifact '0123456'"),
            ("production:demo/tiny/gpu", f"there is production:{MODEL}/{TARGET}, previous:{MODEL}/{TARGET}"),
        ],
    )
    def test_what_is_ambiguous_or_unknown_is_refused_with_what_there_is(self, history, text, said):
        with pytest.raises(ConfigError) as refused:
            resolve_reference(history.store, text)
        assert said in str(refused.value)


class TestListing:
    def test_releases_say_how_they_ended_and_what_they_serve(self, run):
        code, output, _ = run("ls")
        header, newest, oldest = output.splitlines()
        assert code == 0
        assert header.split() == ["release", "model", "resolved", "(UTC)", "verdict", "reached", "serves"]
        assert newest.split()[0] == SECOND
        assert newest.endswith(f"production {TARGET}")
        assert oldest.endswith(f"package {TARGET}  previous {TARGET}")

    @pytest.mark.parametrize("what", ["releases", "artifacts"])
    def test_every_list_is_there_for_programs_too(self, run, what):
        code, output, _ = run("ls", what, "--json")
        assert code == 0
        assert isinstance(json.loads(output), list)


class TestDamage:
    """One damaged document is named; everything else is shown, and the exit code is 5."""

    @pytest.fixture(params=[b"", b'{"revision": "1", "value": {"form": "unknown"}}'], ids=["empty", "another form"])
    def damaged(self, history, request):
        """Damages documents, and puts them right again."""
        before = {}

        def damage(name: str) -> None:
            file = Path(history.store.uri.removeprefix("file://")) / name
            before[file] = file.read_bytes() if file.exists() else None
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(request.param)

        yield damage
        for file, content in before.items():
            file.unlink() if content is None else file.write_bytes(content)

    @pytest.mark.parametrize(
        "document", ["places/other.json", f"releases/{FIRST}/release.json", f"releases/{FIRST}/results/download.json"]
    )
    def test_a_list_names_it(self, run, damaged, document):
        damaged(document)
        code, output, _ = run("ls")
        assert code == 5
        lines = [line for line in output.splitlines() if line.startswith("DAMAGED")]
        assert len(lines) == 1
        assert document.removesuffix("/results/download.json").removesuffix("/release.json") in lines[0]
        assert SECOND in output
        assert run("ls", "--json")[0] == 5

    def test_an_artifact_is_marked(self, history, run, damaged):
        ref = ref_of(history, SECOND, "checkpoint")
        damaged(f"artifacts/checkpoint/{ref.digest}/_MANIFEST.json")
        assert run("ls", "artifacts")[0] == 5

    def test_what_is_shown_says_what_is_missing(self, history, run, damaged):
        damaged("places/other.json")
        damaged(f"releases/{FIRST}/results/download.json")
        code, output, _ = run("show", FIRST)
        assert code == 5
        assert f"DAMAGED  releases/{FIRST}/results/download.json" in output
        assert "DAMAGED  places/other.json" in output
        assert "model_repository" in output
        code, output, _ = run("show", str(ref_of(history, SECOND, "model_repository")))
        assert (code, f"production:{MODEL}/{TARGET}" in output) == (5, True)
        assert resolve_reference(history.store, f"production:{MODEL}/{TARGET}").pointer.release_id == SECOND

    def test_the_damaged_pointers_themselves_are_one_clear_error(self, run, damaged):
        damaged(f"places/{TARGET}.json")
        code, _, error = run("show", f"production:{MODEL}/{TARGET}")
        assert code == 5
        assert f"places/{TARGET}.json" in error
        assert "restore it from a backup" in error

    def test_claims_of_other_models_are_shown(self, history, run, damaged):
        history.claim(SECOND)
        damaged("claims/demo/other.json")
        code, output, _ = run("claims")
        assert code == 5
        assert f"{MODEL}  running: release {SECOND}" in output
        assert "DAMAGED  claims/demo/other.json" in output
        history.claim(None)


class TestShowing:
    def test_a_release_with_its_config_results_verdicts_and_artifacts(self, run):
        _, output, _ = run("show", f"production:{MODEL}/{TARGET}")  # which stands for its release
        assert f"model: {MODEL}@{2:040x}" in output
        assert "accuracy fp8: 'NO_GO, " in output
        assert "too much is lost" in output
        assert "download checkpoint: checkpoint/" in output
        assert "margin: 0.05" in output
        assert f"serves: production:{MODEL}/{TARGET}" in output

    def test_a_release_whose_canary_is_paused_says_by_whom_and_until_when_and_its_list_does(self, history, run):
        repository = ref_of(history, SECOND, "model_repository")
        record = canary_record(SECOND, TARGET, repository=repository, phase=Phase.BAKING)
        journal = CanaryJournal(history.store, SECOND, TARGET)
        journal.load()
        journal.save(record)
        asked = PauseRequest(attempt=0.0, by="alice", since=0.0, deadline_seconds=3600)
        paused_now = {"on_trial": SECOND, "pause": asked}
        edit_place(history.store, TARGET, lambda state: state.model_copy(update=paused_now))
        paused = "paused by alice since 1970-01-01 00:00:00 UTC; rolled back at 1970-01-01 01:00:00 UTC"
        try:
            assert f"- {TARGET} {paused}" in run("show", SECOND)[1]
            assert f"{TARGET} {paused}" in run("ls")[1]
            assert json.loads(run("ls", "--json")[1])[0]["pauses"][0].startswith(f"{TARGET} paused by alice since ")
        finally:
            edit_place(history.store, TARGET, lambda state: state.model_copy(update={"on_trial": "", "pause": None}))
            history.store.delete_document(canary_record_name(SECOND, TARGET))

    def test_what_its_last_run_has_otherwise_than_the_config(self, tmp_path):
        history = History(tmp_path)
        release_id = history.resolve(1)
        name = release_record_name(release_id)
        document = history.store.read_document(name)
        asked = {"overrides": {"targets": [TARGET]}, "overridden_by": "ann"}
        history.store.write_document(name, {**document.value, **asked}, document.revision)
        view = show(history.store, resolve_reference(history.store, release_id))
        assert f"overridden: targets {TARGET}, by ann" in list(view.lines())

    def test_an_artifact_with_its_files_provenance_and_users(self, history, run):
        ref = ref_of(history, FIRST, "model_repository")
        _, output, _ = run("show", str(ref))
        assert "stage: package/1" in output
        assert "signature: none" in output
        assert f"previous:{MODEL}/{TARGET}" in output
        assert f"{FIRST}: package {TARGET} model_repository" in output
        assert "path: content" in output

    def test_a_signature_is_checked_with_the_keys_of_the_deployment(self, tmp_path):
        pytest.importorskip("model_signing")
        signed, other = signing_with_new_keys(tmp_path), signing_with_new_keys(tmp_path / "other")
        history = History(tmp_path, {"uri": f"file://{tmp_path / 'store'}", "signing": signed})
        ref = history.publish("checkpoint", "signed")

        def state(signing: Signing | None) -> str:
            return show(open_store(history.deployment.store.model_copy(update={"signing": signing})), ref).signature

        assert state(signed) == "valid"
        assert state(None).startswith("not checked")
        assert state(other).startswith("NOT VALID: ")


class TestVerifying:
    @pytest.mark.parametrize("reference", [FIRST, f"production:{MODEL}/{TARGET}"])
    def test_what_is_whole_ends_with_0(self, run, reference):
        code, output, _ = run("verify", reference)
        assert code == 0
        assert output.splitlines()[-1].endswith("artifacts read, 0 damaged")

    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            (lambda file: file.write_text("x" * file.stat().st_size), "  content: changed"),
            (Path.unlink, "  content: missing"),
            (lambda file: file.with_name("more").write_text("more"), "  more: not in the manifest"),
        ],
    )
    def test_each_difference_is_printed_and_the_exit_code_is_5(self, tmp_path, run, damage, said):
        history = History(tmp_path / "other")
        release_id = history.release(7)
        ref = ref_of(history, release_id, "checkpoint")
        damage(tmp_path / "other" / "store" / "artifacts" / "checkpoint" / ref.digest / "content")
        write_bare_deployment(tmp_path / "here.yaml", history.store.uri)
        code, output, _ = run("verify", release_id)
        assert code == 5
        assert said in output
        assert f"DAMAGED  {ref}  download checkpoint" in output
        assert "3 artifacts read, 1 damaged" in output
        code, output, _ = run("verify", "--json", str(ref))
        assert code == 5
        assert len(json.loads(output)[0]["problems"]) >= 1


class TestComparing:
    def test_two_releases_say_what_changed_by_dotted_path(self, run):
        _, output, _ = run("diff", FIRST, SECOND)
        assert f'  commit: "{1:040x}" -> "{2:040x}"' in output
        assert "  policy.accuracy.margin: 0.01 -> 0.05" in output
        assert '  verdict: "GO" -> "NO_GO"' in output
        assert "download: the keys differ" in output
        assert '  config.of: "00000001-00000064" -> "00000002-000001f4"' in output
        assert "report: ran in the first release only" in output

    def test_pointers_stand_for_their_releases(self, run):
        place = f"{MODEL}/{TARGET}"
        _, output, _ = run("diff", "--json", f"previous:{place}", f"production:{place}")
        assert "config" in [section["title"] for section in json.loads(output)["sections"]]

    def test_two_artifacts_say_which_files_and_what_of_their_provenance_changed(self, history, run):
        refs = [str(ref_of(history, release, "checkpoint")) for release in (FIRST, SECOND)]
        _, output, _ = run("diff", *refs)
        assert "files:" in output or "files\n" in output
        assert "  content: " in output
        assert f'  release_id: "{FIRST}" -> "{SECOND}"' in output

    def test_the_same_is_the_same_and_two_of_different_kinds_are_refused(self, history, run):
        assert run("diff", FIRST, FIRST)[1] == f"{FIRST} -> {FIRST}: the same\n"
        code, _, error = run("diff", FIRST, str(ref_of(history, FIRST, "checkpoint")))
        assert (code, "different kinds" in error) == (4, True)
