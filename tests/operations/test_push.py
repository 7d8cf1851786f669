"""A release's checkpoint on a hub: what is refused, what the card says, and that it comes back byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")
pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

import sample_release as sample
from local_hub import CONFIG, TOKEN_VARIABLE, LocalHub, safetensors_bytes, serve_local_hub
from signing_keys import signing_with_new_keys

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.config.deployment import Deployment, HubAccess
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.model_card import card_fields, inherited_fields
from llm_pipeline.operations.push import NotPassed, Push, prepare, send
from llm_pipeline.release.record import read_release_record, release_record_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.manifest import MANIFEST_FILE, SIGNATURE_FILE
from llm_pipeline.store.place_state import WayBack, edit_place

REPOSITORY = "acme/tiny-fp8"
TOKEN = "hf_writerofthistestonly"
BASE_CARD = b"---\nlicense: other\nlicense_name: tiny-licence\nlicense_link: LICENSE\nlanguage: [en, de]\n---\n# Tiny\n"


class Release(sample.SampleRelease):
    """A sample release whose checkpoints are models that our download takes."""

    def publish(self, kind: str, files: dict[str, bytes]) -> Any:
        if kind == "checkpoint":
            size = len(files["model.safetensors"])
            files = {
                "model.safetensors": safetensors_bytes(size, seed=size % 7),
                "config.json": CONFIG,
                "hf_quant_config.json": b'{"quantization": {"quant_algo": "FP8"}}',
            }
        return super().publish(kind, files)


@dataclass
class Site:
    """A release, its deployment, and a hub that has its base model."""

    release: Any
    deployment: Deployment
    hub: LocalHub

    @property
    def flow(self) -> ReleaseProgress:
        return ReleaseProgress(self.release.store, read_release_record(self.release.store, sample.RELEASE))

    def edit_record(self, edit: Callable[[dict[str, Any]], object]) -> None:
        name = release_record_name(sample.RELEASE)
        document = self.release.store.read_document(name)
        edit(document.value)
        self.release.store.write_document(name, document.value, document.revision)

    def prepare(self, **options: str) -> Push:
        return prepare(self.flow, self.deployment, REPOSITORY, **options)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A release that passed all gates before production."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with serve_local_hub(tmp_path) as hub:
        yield passed_release(tmp_path, hub)


def passed_release(tmp_path: Path, hub: LocalHub, store: Any = None) -> Site:
    release = Release(tmp_path, store=store)
    release.measure_baseline()
    release.try_recipes(["int4_naive", "fp8"])
    release.conclude("fp8")
    release.build()
    release.load_test()
    commit = hub.publish("example/tiny-llama", README__md=BASE_CARD)
    model = PinnedModel(id="example/tiny-llama", commit=commit, files=(), license="tiny-licence", gated="manual")
    access = HubAccess(endpoint=hub.endpoint, token_variable=TOKEN_VARIABLE)
    deployment = read_release_record(release.store, sample.RELEASE).deployment.model_copy(update={"hub": access})
    site = Site(release, deployment, hub)
    site.edit_record(lambda record: record.update(model=model.model_dump(mode="json")))
    return site


def test_what_was_pushed_comes_back_through_our_own_download_with_the_manifest_s_hashes(
    site: Site, tmp_path: Path
) -> None:
    push = site.prepare()
    pushed = send(site.deployment, push)
    source = HubSource(connect(site.hub.endpoint, TOKEN_VARIABLE))
    model = source.resolve(REPOSITORY, "main")
    assert (model.commit, model.license) == (pushed.commit, "tiny-licence")
    download_model(source, model, tmp_path / "back")
    checkpoint = site.flow.artifact("quantize", "fp8", "checkpoint")
    came = site.release.store.publish("checkpoint", tmp_path / "back")
    assert came == checkpoint


def test_the_card_s_metadata_names_the_base_its_licence_and_the_format(site: Site) -> None:
    fields = card_fields(site.prepare().card)
    base = site.flow.record.model
    assert fields == {
        "base_model": "example/tiny-llama",
        "base_model_relation": "quantized",
        "license": "other",
        "license_name": "tiny-licence",
        "license_link": f"{site.hub.endpoint}/example/tiny-llama/blob/{base.commit}/LICENSE",
        "language": ["en", "de"],
        "pipeline_tag": "text-generation",
        "library_name": "Model Optimizer",
        "tags": ["llm-pipeline", "modelopt", "int8_weight_only"],
    }


def test_the_card_has_the_accuracy_of_each_task_with_its_bounds_load_and_provenance(site: Site) -> None:
    card, flow = site.prepare().card, site.flow
    gate = flow.result("accuracy", "fp8")
    assert gate.judgement is not None
    for fact in gate.judgement.evidence:
        assert fact.lower is not None
        assert fact.upper is not None
        row = next(line for line in card.splitlines() if line.startswith(f"| {fact.name.partition(', ')[2]} |"))
        assert f"{100 * fact.lower:+.2f} to {100 * fact.upper:+.2f}".lstrip("+") in row.replace("\\", "")
        assert f"| {fact.samples:,} |" in row
    assert "### As served on cpu" in card
    assert "| Requests under load, cpu |" in card
    assert flow.artifact("quantize", "fp8", "checkpoint").digest in card
    assert flow.record.model.commit in card
    assert "nvidia-modelopt 0.47.0" in card.replace("\\", "")
    assert "accuracy, int4" not in card.replace("\\", "")  # a recipe that was tried and not chosen
    assert "USD" not in card


def test_the_same_evidence_gives_the_same_files_and_no_second_commit(site: Site) -> None:
    first = send(site.deployment, site.prepare())
    site.release.canary()
    site.release.settle()
    assert site.prepare().card == site.prepare().card
    second = send(site.deployment, site.prepare())
    assert (second.made, second.commit) == (False, first.commit)


@pytest.mark.parametrize("verdict", [Verdict.NO_GO, Verdict.INCONCLUSIVE])
def test_a_release_that_a_gate_did_not_let_pass_is_refused(site: Site, verdict: Verdict) -> None:
    site.release.add("canary", "cpu:25", judgement=judge("Slow.", [_fact(verdict)]))
    with pytest.raises(NotPassed, match=f"canary, cpu:25: {verdict.value}") as caught:
        site.prepare()
    assert caught.value.exit_code == 1


def _fact(verdict: Verdict) -> Evidence:
    return Evidence(name="slow first tokens", verdict=verdict, measured=9.0, limit=2.0, samples=100)


def test_a_release_whose_load_test_has_not_run_is_refused(tmp_path: Path, site: Site) -> None:
    name = f"releases/{sample.RELEASE}/results/load_test.cpu.json"
    assert site.release.store.read_document(name) is not None
    site.release.store.delete_document(name)
    with pytest.raises(NotPassed, match="no target has passed its gates"):
        site.prepare()
    with pytest.raises(ConfigError, match="has no target 'gpu'"):
        site.prepare(target="gpu")


@pytest.mark.parametrize("name", ["noslash", "../x"])
def test_what_is_no_repository_is_refused_before_anything_is_read(site: Site, name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a repository"):
        prepare(site.flow, site.deployment, name)
    assert not any(path.startswith("/api/repos") for _, path, _ in site.hub.faults.requests)


@pytest.mark.parametrize("left", ["in its run", "by production"])
def test_a_release_that_was_rolled_back_is_refused(site: Site, left: str) -> None:
    if left == "in its run":
        site.release.add("rollback", "cpu", 1.1, metrics={"phase": "rolled back"})
    else:
        repository = ArtifactRef(kind="model_repository", digest="a" * 64)
        back = WayBack(left=sample.RELEASE, to="before", by="alice", asked_at=sample.START, repository=repository)
        edit_place(site.release.store, "cpu", lambda state: state.model_copy(update={"way_back": back}))
    with pytest.raises(NotPassed, match="rolled back on cpu"):
        site.prepare()


def test_a_checkpoint_that_is_not_the_one_that_was_judged_is_refused(site: Site) -> None:
    document = site.release.store.read_document(f"releases/{sample.RELEASE}/results/quantize.fp8.json")
    other = site.release.publish("checkpoint", {"model.safetensors": b"x" * 5000})
    value = document.value | {"artifacts": {"checkpoint": other.model_dump()}}
    site.release.store.write_document(f"releases/{sample.RELEASE}/results/quantize.fp8.json", value, document.revision)
    with pytest.raises(NotPassed, match="was not judged"):
        site.prepare()


def test_a_damaged_checkpoint_is_refused(site: Site) -> None:
    directory = site.release.store.fetch(site.flow.artifact("quantize", "fp8", "checkpoint"))
    weights = directory / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError, match=r"model\.safetensors"):
        site.prepare()


def test_a_signed_checkpoint_takes_its_signature_along_and_an_outsider_can_check_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("model_signing")
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    signing = signing_with_new_keys(tmp_path / "keys")
    store = LocalStore(store_settings(uri=f"file://{tmp_path / 'store'}", signing=signing))
    with serve_local_hub(tmp_path) as hub:
        site = passed_release(tmp_path, hub, store)
        send(site.deployment, site.prepare())
        from huggingface_hub import snapshot_download

        back = Path(snapshot_download(REPOSITORY, endpoint=hub.endpoint, token=TOKEN, local_dir=tmp_path / "outsider"))
    (back / "llm_pipeline" / MANIFEST_FILE).rename(back / MANIFEST_FILE)
    signature = back / "llm_pipeline" / SIGNATURE_FILE
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(back), "--signature", str(signature)]
    command += ["--public_key", str(signing.public_keys[0])]
    command += [f"--ignore-paths={back / name}" for name in ("README.md", "llm_pipeline", ".cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    weights = back / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode != 0


def test_the_command_pushes_and_a_dry_run_only_shows(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_pipeline.cli import main

    deployment = site.deployment.model_dump(mode="json", exclude_none=True, exclude={"name"})
    file = tmp_path / "laptop.yaml"
    file.write_text(json.dumps(deployment))  # YAML, too
    command = ["push", sample.RELEASE, "--repository", REPOSITORY, "--deployment", str(file)]
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "base_model: example/tiny-llama" in shown
    assert "licence of the base model: tiny-licence, and its repository is gated;" in shown
    assert not (site.hub.root / "acme").exists()
    assert main(command) == 0
    assert "pushed and verified" in (pushed := capsys.readouterr().out)
    assert main(command) == 0
    assert "it was there, and is the same" in capsys.readouterr().out
    assert main([*command[:2], *command[4:]]) == 0  # to the account of the token
    assert "/local/tiny-llama-fp8 at commit" in capsys.readouterr().out
    assert TOKEN not in shown + pushed
    site.release.add("canary", "cpu:25", judgement=judge("Slow.", [_fact(Verdict.NO_GO)]))
    assert main(command) == 1


@pytest.mark.parametrize(
    ("card", "stated", "fields"),
    [
        ({"license": "apache-2.0"}, "apache-2.0", {"license": "apache-2.0"}),
        ({}, "mit", {"license": "mit"}),
        ({}, None, {}),
        ({}, "qwen-research", {"license": "other", "license_name": "qwen-research", "license_link": "https://h/o/m"}),
        (
            {"license": "other", "license_name": "x", "license_link": "https://l/x"},
            "x",
            {"license": "other", "license_name": "x", "license_link": "https://l/x"},
        ),
        (
            {"license": "other"},
            "other",
            {"license": "other", "license_name": "m-license", "license_link": "https://h/o/m"},
        ),
        (
            {"license": ["mit"], "language": 7},
            "['mit']",
            {"license": "other", "license_name": "['mit']", "license_link": "https://h/o/m"},
        ),
    ],
)
def test_the_licence_is_the_base_s(card: dict[str, Any], stated: str | None, fields: dict[str, Any]) -> None:
    model = PinnedModel(id="o/m", commit="ab" * 20, files=(), license=stated)
    assert inherited_fields(card, model, "https://h/o/m") == fields


def test_text_from_outside_cannot_break_the_card_s_tables_or_metadata(site: Site) -> None:
    def poison(value: dict[str, Any]) -> None:
        for recipe in value["release"]["recipes"]:
            recipe["description"] = "a | b <script>"
        value["model"]["license"] = "x\nbase_model: evil/model\n---\n"
        value["release"]["model"]["source"] = "file:///models/tiny"  # no card of a hub beside it

    site.edit_record(poison)
    card = site.prepare().card
    fields = card_fields(card)
    assert (fields["base_model"], fields["license"]) == ("example/tiny-llama", "other")
    assert "evil" in fields["license_name"]
    assert "<script>" not in card.replace("\\<script", "")
    assert "a \\| b" in card
