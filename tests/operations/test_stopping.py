"""`llm-pipeline stop` ends what runs left at a place: nobody has to look for process ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from claim_holder import holder

from llm_pipeline.base import detached
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import main
from llm_pipeline.operations import staging, switching
from llm_pipeline.release.claim_state import ClaimState


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ports = iter(range(18601, 18640))
    document = {
        "store": f"file://{tmp_path}/store",
        "work_root": str(tmp_path),
        "state_root": str(tmp_path / "state"),
        "environments": {},
        "triton_home": str(tmp_path),
        "places": {
            place: {
                **{
                    name: {kind: next(ports) for kind in ("http", "grpc", "metrics")}
                    for name in ("staging", "blue", "green")
                },
                "router": {"port": next(ports), "admin_port": next(ports)},
            }
            for place in ("cpu", "other")
        },
    }
    (tmp_path / "here.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(tmp_path / "here.yaml"))
    for module in (staging, switching):
        monkeypatch.setattr(module, "places_of", lambda *_: {"cpu"})
    return tmp_path


@pytest.fixture
def left(root: Path) -> Iterator[detached.DetachedProcess]:
    directory = root / "jobs" / "r-1" / "load_test.cpu" / "1"
    name, command, log = "stage load_test cpu", ["sleep", "600"], directory / "log.jsonl"
    process = detached.start(name, command, directory / "process.json", log=log)
    yield process
    detached.stop(process)


def test_a_stage_whose_run_is_over_is_ended_once_at_its_place(left, capsys) -> None:
    assert main(["stop", "other"]) == ExitCode.GO
    assert capsys.readouterr().out == "other: nothing ran, nothing was stopped\n"
    assert left.alive
    assert main(["stop"]) == ExitCode.GO
    assert "cpu: stopped stage load_test cpu\n" in capsys.readouterr().out
    assert not left.alive
    assert main(["stop"]) == ExitCode.GO
    assert "stage" not in capsys.readouterr().out


@pytest.mark.parametrize(("alive", "ended"), [(True, False), (False, True)])
def test_a_release_on_its_way_keeps_its_stages_until_its_process_has_ended(
    left, monkeypatch, capsys, alive: bool, ended: bool
) -> None:
    state = ClaimState(holder=holder(pid_offset=0 if alive else 1))
    monkeypatch.setattr(staging, "readable_claims", lambda _: ({"org/model": state}, []))
    assert main(["stop", "cpu"]) == ExitCode.GO
    assert ("r-1" in capsys.readouterr().out) is not ended
    assert left.alive is not ended
