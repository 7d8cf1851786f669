"""A target with two Triton slots, a router and users: canaries, settlement and ways back through the stage contract."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from deployment_here import place_document
from free_ports import free_ports
from resolved_release import deployment_below, resolve

from llm_pipeline.adapters.envoy.router import router_of, stop_router
from llm_pipeline.base import detached
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.demo.traffic import TrafficRecord
from llm_pipeline.operations.rollback import roll_back
from llm_pipeline.operations.served_place import place_with_router
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.serving.repository_links import write_links
from llm_pipeline.serving.triton_server import find_server, stop_server
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import PlaceState, read_place

ROOT = Path(__file__).parents[2]
TRITON_HOME, MODEL_PYTHON = ROOT / ".envs" / "triton", ROOT / ".envs" / "model" / "bin" / "python"
TOY = ROOT / "tests" / "serving" / "toy_repository"
MODEL = "demo/tiny"
POLICY = {
    "steps_percent": [50, 100],
    "minimum_bake_seconds": 1.0,
    "maximum_bake_seconds": 30,
    "minimum_requests": 10,
    "slow_ratio": 4.0,
    "slow_quantiles": [0.95],
    "look_seconds": 0.4,
}


class Production:
    """A target with two Triton slots, a router and users."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = MODEL
        self.policy: dict[str, Any] = dict(POLICY)
        ports = iter(free_ports(14))
        place = place_document(ports)
        self.router_port = place["router"]["port"]
        software = {"environments": {"model": str(MODEL_PYTHON)}, "triton_home": str(TRITON_HOME)}
        self.deployment = deployment_below(root, places={"cpu": place}, **software)
        self.store = open_store(self.deployment.store)
        self.repositories = {release: self.publish(release) for release in ("r1", "r2")}
        self._users: detached.DetachedProcess | None = None

    def deployment_file(self) -> Path:
        """As a command reads it."""
        path = self.root / "here.yaml"
        path.write_text(self.deployment.model_dump_json(exclude={"name"}))  # JSON is YAML
        return path

    def state(self, name: str) -> Path:
        return self.root / "state" / "cpu" / name

    def canary(self, release: str, percent: float, *, run: str = "first run") -> StageResult:
        return result(self.ask_canary(release, percent, run=run))

    def ask_canary(self, release: str, percent: float, *, run: str = "first run") -> StageResult | StageFailure:
        return execute(self.canary_request(release, percent, run=run))

    def settle(self, release: str) -> StageResult | StageFailure:
        return execute(self.settle_request(release))

    def rollback(self, release: str) -> StageResult:
        return result(execute(self.rollback_request(release)))

    def canary_request(self, release: str, percent: float, *, run: str = "first run") -> StageRequest:
        config = {
            **self._place(),
            "run": run,
            "step_percent": percent,
            "policy": self.policy,
            "workload": {
                "prompts": "p.jsonl",
                "rate_per_second": 1,
                "duration_seconds": 1,
                "output_tokens": {"kind": "lognormal", "median": 4, "p95": 6, "minimum": 2, "maximum": 8},
            },
        }
        return self._request(release, "canary", f"cpu:{percent:g}", config)

    def settle_request(self, release: str) -> StageRequest:
        return self._request(release, "settle", "cpu", {**self._place(), "recipe": "int8"})

    def rollback_request(self, release: str) -> StageRequest:
        return self._request(release, "rollback", "cpu", self._place())

    def roll_back(self, leaving: str = "") -> None:
        """As a person asks for it."""
        place = place_with_router(self.store, self.deployment, self.model, "cpu")
        roll_back(place, by="anna: it answers nonsense", leaving=leaving)

    def deploy_first(self) -> None:
        assert verdict(self.canary("r1", 50)) is Verdict.GO
        result(self.settle("r1"))

    def promote(self, release: str, *, run: str = "first run") -> None:
        assert [verdict(self.canary(release, percent, run=run)) for percent in (50, 100)] == [Verdict.GO] * 2
        result(self.settle(release))

    def pointers(self) -> PlaceState:
        return read_place(self.store, "cpu").of(self.model)

    def releases(self) -> tuple[str, str | None]:
        pointers = self.pointers()
        assert pointers.production is not None
        return pointers.production.release_id, pointers.previous.release_id if pointers.previous else None

    def weights(self) -> dict[str, int]:
        router = router_of(self.state("router"))
        assert router is not None
        return {slot: weight for slot, weight in router.read()[0].weights.items() if weight}

    def answered_by(self) -> str | None:
        """The release that an answer says it is of."""
        body = json.dumps({"text_input": "a b", "max_tokens": 2}).encode()
        url = f"http://127.0.0.1:{self.router_port}/v2/models/llm/generate"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as answer:
            return answer.headers.get("x-llm-release")

    def serves(self, slot: str) -> str | None:
        server = find_server(self.state(slot))
        return next((name for name, ref in self.repositories.items() if server and ref.digest == server.digest), None)

    def users(self) -> None:
        prompts, record = self.root / "prompts.jsonl", self.root / "users.json"
        prompts.write_text('{"prompt": "a b c"}\n{"prompt": "d e"}\n')
        command = [sys.executable, "-m", "llm_pipeline.demo.traffic", "--rate", "30", "--prompts", str(prompts)]
        command += ["--url", f"http://127.0.0.1:{self.router_port}", "--record", str(self.root / "traffic.json")]
        self._users = detached.start("users", command, record, log=self.root / "users.log")

    def users_go(self) -> TrafficRecord:
        if self._users is not None:
            detached.stop(self._users, grace_seconds=20)
        self._users = None
        return TrafficRecord.model_validate_json((self.root / "traffic.json").read_text())

    def down(self) -> None:
        if self._users is not None:
            detached.stop(self._users)
        stop_router(self.state("router"))
        for slot in ("blue", "green"):
            stop_server(self.state(slot))

    def _place(self) -> dict[str, Any]:
        place = self.deployment.places["cpu"].model_dump(mode="json")
        where = {"model_id": self.model, "target": "cpu", "place": place, "state_root": self.deployment.state_root}
        return {**where, "triton_home": str(TRITON_HOME), "python": str(MODEL_PYTHON)}

    def _request(self, release: str, stage: str, subject: str, config: dict[str, Any]) -> StageRequest:
        resolve(self.store, release, model=self.model)
        return StageRequest(
            release_id=release,
            stage=stage,
            subject=subject,
            config=config,
            inputs=self._inputs(release) if stage != "rollback" else {},
            store=self.deployment.store,
            work_root=self.deployment.work_root,
        )

    def _inputs(self, release: str) -> dict[str, ArtifactRef]:
        if not self.policy.get("replay_requests_per_second"):
            return {"repository": self.repositories[release]}
        prompts = self.root / "data"
        prompts.mkdir(exist_ok=True)
        (prompts / "p.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d e"}\n')
        return {"repository": self.repositories[release], "prompts": self.store.publish("dataset", prompts)}

    def publish(self, release: str) -> ArtifactRef:
        directory = self.root / "repositories" / release
        shutil.copytree(TOY, directory, ignore=shutil.ignore_patterns("__pycache__"))
        line = json.dumps({"prompt": f"a {release}", "completion": f" a {release}", "max_tokens": 2}) + "\n"
        (directory / "golden.jsonl").write_text(line * 5)
        (self.root / "linked").mkdir(exist_ok=True)
        (self.root / "linked/weights").write_text("weights")
        write_links(directory, {"llm/1/linked": self.store.publish("checkpoint", self.root / "linked")})
        return self.store.publish("model_repository", directory)


def result(outcome: StageResult | StageFailure) -> StageResult:
    assert isinstance(outcome, StageResult), outcome
    return outcome


def verdict(outcome: StageResult) -> Verdict:
    assert outcome.judgement is not None
    return outcome.judgement.verdict
