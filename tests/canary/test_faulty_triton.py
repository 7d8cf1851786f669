"""Candidates that hang, stall or fail inside their answers: real Triton servers behind a real Envoy, by the stages."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from production_site import MODEL_PYTHON, TRITON_HOME, Production, verdict

from llm_pipeline.base import detached
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase, read_canary_record

sys.path.insert(0, str(Path(__file__).parents[1] / "serving" / "faulty_model"))

import faulty_server

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

USERS = Path(__file__).with_name("triton_users.py")
RATE, PATIENCE_SECONDS = 15.0, 3.0


class FaultyProduction(Production):
    """Its servers have the model with faults on demand."""

    def publish(self, release: str) -> ArtifactRef:
        directory = self.root / release
        directory.mkdir()
        repository = faulty_server.write_repository(directory)
        golden = {"prompt": f"golden {release}", "completion": "", "max_tokens": 2}
        (repository / "golden.jsonl").write_text((json.dumps(golden) + "\n") * 5)
        return self.store.publish("model_repository", repository)

    def users_of(self, *kinds: str) -> None:
        command = [sys.executable, str(USERS), str(self.router_port), str(RATE), str(self.root / "traffic.json")]
        command += [str(PATIENCE_SECONDS), *kinds]
        record, log = self.root / "users.json", self.root / "users.log"
        self._users = detached.start("users", command, record, log=log)
        self.await_sent(60)

    def let_users_go(self) -> dict[str, Any]:
        assert self._users is not None
        detached.stop(self._users, grace_seconds=20)
        self._users = None
        return self.traffic()

    def traffic(self) -> dict[str, Any]:
        file = self.root / "traffic.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"sent": 0, "failed": 0}
        return found

    def await_sent(self, more: int) -> dict[str, Any]:
        goal, deadline = self.traffic()["sent"] + more, time.monotonic() + 60
        while (now := self.traffic())["sent"] < goal:
            assert time.monotonic() < deadline, (self.root / "users.log").read_text()[-2000:]
            time.sleep(0.1)
        return now

    def order_on_trial(self, kind: str, **how: float) -> None:
        """Give the candidate a fault once it has users."""
        deadline = time.monotonic() + 120
        while "green" not in self.weights():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        prompt = f"#fault {json.dumps({'kind': kind, **how})}"
        url = f"http://127.0.0.1:{self.deployment.places['cpu'].green.http}/v2/models/llm/generate"
        body = json.dumps({"text_input": prompt, "max_tokens": 1}).encode()
        with urllib.request.urlopen(url, body, timeout=10) as answer:
            assert json.load(answer)["text_output"] == "ok"


@pytest.fixture
def production(tmp_path: Path) -> Iterator[FaultyProduction]:
    if not TRITON_HOME.exists() or not MODEL_PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    place = FaultyProduction(tmp_path)
    place.policy |= {"minimum_bake_seconds": 40.0, "maximum_bake_seconds": 120.0}
    try:
        yield place
    finally:
        place.down()


@pytest.mark.parametrize(
    ("kinds", "fault"),
    [
        pytest.param(("unary",), {"kind": "stall", "every": 3, "seconds": 600.0}, id="hang"),
        pytest.param(("sse",), {"kind": "stall", "every": 3, "seconds": 600.0}, id="stall"),
        pytest.param(("sse",), {"kind": "error", "every": 1}, id="CUDA error in every stream"),
    ],
)
def test_a_candidate_whose_users_get_no_whole_answer_goes_back(production, kinds, fault, record_property) -> None:
    production.deploy_first()
    production.users_of(*kinds)
    with ThreadPoolExecutor(1) as threads:
        ordered = threads.submit(production.order_on_trial, **fault)
        judged = production.canary("r2", 50)
        ordered.result()
    assert verdict(judged) is Verdict.NO_GO, judged.judgement
    record = read_canary_record(production.store, "r2", "cpu")
    assert record is not None
    assert (record.phase, production.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000})
    assert production.serves("green") is None
    before = production.traffic()["failed"]
    production.await_sent(round(RATE * 2 * PATIENCE_SECONDS))
    users = production.let_users_go()
    assert users["failed"] <= before + RATE * PATIENCE_SECONDS, "only those who waited as it went back"
    assert users["sent"] == users["ok"] + users["failed"]
    assert 0 < users["failed"] < users["sent"] / 2, users
    for name in ("sent", "failed"):
        record_property(name, users[name])
