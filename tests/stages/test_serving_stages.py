"""Staging, load test and staging down through the stage contract: on a real Triton, and on somebody's OpenAI API."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from free_ports import server_ports
from openai_server import CONTEXT, KEY, OpenAiDouble
from resolved_release import request_below

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.target import Target
from llm_pipeline.loadtest import workload
from llm_pipeline.loadtest.outcome import read_outcome
from llm_pipeline.loadtest.records import read_records
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.serving.repository_links import write_links
from llm_pipeline.serving.triton_server import find_server, start_server, stop_server
from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TRITON_HOME, PYTHON = ROOT / ".envs" / "triton", ROOT / ".envs" / "model" / "bin" / "python"
TOY = ROOT / "tests" / "serving" / "toy_repository"
CPU = load_yaml(ROOT / "configs/targets/cpu.yaml", Target).model_dump(mode="json")
SEARCH = {
    "search": {"maximum_multiple": 2, "window_seconds": 1, "minimum_requests": 60},
    "regression": {"maximum_ratio": 50, "window_seconds": 1, "rounds": 4},
}


def run_stage(root: Path, stage: str, config: dict[str, Any], **inputs: ArtifactRef) -> StageResult | StageFailure:
    return execute(request_below(root, stage, config, subject="cpu", inputs=inputs))


class Release:
    """One release's requests."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "slot"
        self.ports, self.comparison_ports = server_ports().by_name(), server_ports().by_name()
        self.store = open_store(f"file://{root}/store")
        prompts = root / "prompts"
        prompts.mkdir()
        (prompts / "p.jsonl").write_text(
            "".join(json.dumps({"prompt": f"w{n} v{n} u{n} t{n} s{n}"}) + "\n" for n in range(40))
        )
        self.prompts = self.store.publish("dataset", prompts)
        self.repository = self.publish_repository()

    def publish_repository(self, golden: str = "a b a") -> ArtifactRef:
        directory = self.root / f"repository {golden}"
        shutil.copytree(TOY, directory, ignore=shutil.ignore_patterns("__pycache__"))
        line = json.dumps({"prompt": "a b", "completion": golden, "max_tokens": 3}) + "\n"
        (directory / "golden.jsonl").write_text(line * 20)
        write_links(directory, {"llm/1/linked": self.prompts})
        return self.store.publish("model_repository", directory)

    def run(self, stage: str, config: dict, **inputs: ArtifactRef) -> StageResult | StageFailure:
        return run_stage(self.root, stage, config, **inputs)

    def stage(self, repository: ArtifactRef | None = None) -> StageResult | StageFailure:
        config = self.slot | {"policy": {"ready_timeout_seconds": 20}}
        return self.run("staging", config, repository=repository or self.repository)

    @property
    def slot(self) -> dict:
        software = {"triton_home": str(TRITON_HOME), "python": str(PYTHON)}
        slot = {"state": str(self.state), "release_name": "demo", "target": CPU, **software}
        return {"place": self.ports, "slot": slot}

    def load_test(
        self, digest: str | None = None, *, search: bool = True, **inputs: ArtifactRef
    ) -> StageResult | StageFailure:
        config = {
            "endpoint": {
                "url": f"http://127.0.0.1:{self.ports['openai']}",
                "metrics_url": f"http://127.0.0.1:{self.ports['metrics']}/metrics",
            },
            "comparison": {"ports": self.comparison_ports, "triton_home": str(TRITON_HOME), "python": str(PYTHON),
                           "state": str(self.root / "comparison")},
            "repository_digest": digest or self.repository.digest,
            "users": 8,
            "workload": {"prompts": "p.jsonl", "rate_per_second": 50, "duration_seconds": 2},
            "policy": {"service_level": {"first_token_milliseconds": 2000, "end_to_end_milliseconds": 4000},
                       "maximum_client_lag_milliseconds": 500, "attainment": 0.6, "windows": 6,
                       **(SEARCH if search else {"search": None})},
            "staging": {"ready_timeout_seconds": 20},
        }  # fmt: skip
        return self.run("load_test", config, prompts=self.prompts, repository=self.repository, **inputs)


@pytest.fixture
def release(tmp_path):
    if not TRITON_HOME.exists() or not PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    release = Release(tmp_path)
    yield release
    stop_server(release.state)


def test_a_candidate_is_staged_measured_and_taken_down(release):
    staged = release.stage()
    assert isinstance(staged, StageResult), staged
    assert staged.judgement.verdict is Verdict.GO
    assert (release.state / "repository/llm/1/linked/p.jsonl").is_file()
    assert staged.metrics["endpoint"] == f"http://127.0.0.1:{release.ports['openai']}"

    refused = release.load_test("0" * 64)
    assert isinstance(refused, StageFailure)
    assert (refused.error.type, refused.error.family) == ("IntegrityError", "terminal"), "another repository is served"
    measured = release.load_test(production=release.repository)
    assert isinstance(measured, StageResult), measured
    assert measured.judgement.verdict is Verdict.GO, measured.judgement.summary
    files = release.store.fetch(measured.artifacts["load_test"])
    outcome = read_outcome(files)
    assert outcome.confirmed_rate_per_second >= 50
    requests = {window.name: window.requests for window in outcome.windows}
    assert len(read_records(files / "target.csv.gz")) == requests["target"]
    assert {window.failed for window in outcome.windows} == {0}
    assert outcome.windows[-1].server.samples > 0
    assert [fact for fact in outcome.judgement.evidence if fact.name.endswith("relative to production")]
    assert any(fact.name.startswith("after the load: ") for fact in outcome.judgement.evidence)
    assert find_server(release.root / "comparison") is None
    assert release.load_test(production=release.repository).reused, "the same repository and traffic: measured once"

    down = release.run("staging_down", release.slot)
    assert down.metrics["was_running"] == 1
    assert find_server(release.state) is None
    assert release.run("staging_down", release.slot).metrics["was_running"] == 0


def test_a_candidate_that_fails_its_probes_is_stopped(release):
    staged = release.stage(release.publish_repository("other words"))
    assert staged.judgement.verdict is Verdict.NO_GO
    assert find_server(release.state) is None


def test_a_second_candidate_waits_for_the_first(release):
    release.stage()
    refused = release.stage(release.publish_repository("other words"))
    assert isinstance(refused, StageFailure)
    assert refused.error.family == "transient"
    assert "another candidate is being staged" in refused.error.message


def test_a_load_test_that_is_tried_again_sends_other_prompts(release, monkeypatch):
    """The server keeps its caches between attempts of the task, and would answer known prompts from them."""
    failure = release.load_test(search=False)
    assert isinstance(failure, StageFailure)
    assert failure.error.family == "transient", "without a server it may be tried again"
    release.stage()
    seeds, draws = set(), workload.draws
    monkeypatch.setattr(workload, "draws", lambda seed, purpose: seeds.add(seed) or draws(seed, purpose))
    assert isinstance(release.load_test(search=False), StageResult)
    assert {seed // 1_000_000 for seed in seeds} == {1}


def test_a_server_that_somebody_started_without_a_name_is_not_trusted(release):
    from llm_pipeline.config.server_place import ServerPorts

    start_server(
        release.store.fetch(release.repository), ServerPorts(**release.ports),
        triton_home=TRITON_HOME, python=PYTHON, state=release.state,
    )  # fmt: skip
    assert release.load_test().error.type == "IntegrityError"


def test_a_candidate_is_staged_on_somebodys_server_and_no_record_has_its_key(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TEST_KEY", KEY)
    asked = [{"prompt": f"w{n} v{n} u{n}", "max_tokens": 8, "temperature": 0} for n in range(20)]
    with OpenAiDouble(key=KEY) as server:
        golden = [
            {"prompt": one["prompt"], "completion": "".join(server._answer(one, "")[0]), "max_tokens": 8}
            for one in asked
        ]
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "golden.jsonl").write_text("".join(json.dumps(one) + "\n" for one in golden))
        repository = open_store(f"file://{tmp_path}/store").publish("model_repository", tmp_path / "made")
        endpoint = {
            "url": server.url, "metrics_url": server.metrics_url, "openai_model": "llm", "api_key_variable": "TEST_KEY"
        }  # fmt: skip
        target = CPU | {"limits": CPU["limits"] | {"maximum_tokens_per_request": CONTEXT}}
        slot = {
            "place": {"kind": "openai", "endpoint": endpoint},
            "slot": {"state": str(tmp_path / "slot"), "release_name": "demo", "target": target},
        }
        policy = {"ready_timeout_seconds": 20}
        staged = run_stage(tmp_path, "staging", {**slot, "policy": policy}, repository=repository)
        assert isinstance(staged, StageResult), staged
        assert staged.judgement.verdict is Verdict.GO, staged.judgement.summary
        stopped = [run_stage(tmp_path, "staging_down", slot).metrics["was_running"] for _ in range(2)]
        assert stopped == [1, 0]
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert KEY.encode() not in written
    assert KEY not in caplog.text + staged.model_dump_json()
