"""What README.md and docs/ promise, run. The tests share one site, in which the demo was released, and nothing else:
each can be run alone."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import yaml

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.demo.local_airflow import read_access
from llm_pipeline.demo.services import CHAT, TINY, ask, read_traffic, stop_traffic
from llm_pipeline.loadtest.outcome import TokenCost
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.record import report_name
from llm_pipeline.store.place_state import PlaceState, read_place

from .gpu_site import gpu_site

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


TARGET = "cpu"


def pointers(site) -> PlaceState:
    model = site.layout.model
    return read_place(site.store, model.place)


def answer(site) -> str:
    pieces: list[str] = []
    assert ask(site.deployment, site.layout.model, pieces.append)
    return "".join(pieces).strip()


def verdict(site, name: str, stage: str, subject: str) -> Verdict:
    judgement = site.flow(name).result(stage, subject).judgement
    assert judgement is not None
    return judgement.verdict


def test_the_demo_releases_a_trained_model_into_live_traffic(site) -> None:
    production, previous = pointers(site).production, pointers(site).previous
    assert production is not None
    assert previous is not None
    assert (previous.recipe, production.recipe) == ("none", site.flow("demo").chosen_recipe(TARGET))
    assert answer(site) == "12"


def test_what_status_says_to_ask_is_answered_by_openais_api(site) -> None:
    status = json.loads(site.call("status", "-d", str(site.layout.deployment), "--json").stdout)
    command = status["places"][0]["ask"]
    assert "/v1/" in command
    said = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=60, check=True).stdout
    head, _, body = said.partition("\n\n")
    assert "200" in head.splitlines()[0]
    assert f"x-llm-release: {pointers(site).production.release_id}" in head
    assert json.loads(body)["choices"][0]["finish_reason"] in ("stop", "length")


def test_the_ladder_is_climbed_from_the_cheapest_recipe_to_the_first_that_holds_its_accuracy(site) -> None:
    flow = site.flow("demo")
    chosen = flow.chosen_recipe(TARGET)
    recipes = climbing_order(flow.release, flow.record.facts)
    cheaper = recipes[: recipes.index(chosen)]
    assert "int4_naive" in cheaper
    assert {verdict(site, "demo", "accuracy", recipe) for recipe in cheaper} == {Verdict.NO_GO}
    assert verdict(site, "demo", "accuracy", chosen) is Verdict.GO
    assert chosen != recipes[-1]
    assert flow.find("quantize", recipes[-1]) is None  # not tried: a cheaper one passed


def test_no_background_request_was_lost(site) -> None:
    record = read_traffic(site.layout)
    assert record.sent > 100
    assert record.failed == 0, record.reasons


def test_every_artifact_of_the_release_verifies(site) -> None:
    verified = site.call("verify", "-d", str(site.layout.deployment), site.flow("demo").record.release_id)
    assert verified.returncode == ExitCode.GO, verified.stdout


def test_the_report_is_behind_airflows_login_and_loads_nothing_from_outside(site) -> None:
    html = site.store.read_file(report_name(site.flow("demo").record.release_id)).decode()
    assert "int4_naive" in html
    assert "http://" not in html.replace("http://www.w3.org/", "")
    assert "https://" not in html.replace("https://www.w3.org/", "")
    access = read_access(site.layout.airflow, site.layout.airflow_port)
    answer = httpx.get(f"{access.url}/llm-pipeline/releases", follow_redirects=False)
    assert answer.status_code in (401, 403), answer.text[:200]


def test_no_secret_is_in_any_file_that_people_read(site) -> None:
    password = read_access(site.layout.airflow, site.layout.airflow_port).password
    readable = [p for p in site.layout.root.rglob("*") if p.suffix in (".log", ".jsonl", ".json", ".html", ".md")]
    holders = [p for p in readable if p.is_file() and password.encode() in p.read_bytes()]
    assert [p.name for p in holders] == ["passwords.json"]


def test_task_logs_hold_no_progress_bars(site) -> None:
    logs = list((Path(site.deployment.work_root) / "jobs").rglob("log.jsonl"))
    assert {"accuracy.int4_naive", "quantize.int4_naive"} <= {log.parts[-3] for log in logs}
    assert [str(log) for log in logs if b"it/s]" in log.read_bytes()] == []


def test_recipe_none_is_judged_by_the_baselines_own_answers(site) -> None:
    (log,) = (Path(site.deployment.work_root) / "jobs").glob("demo-baseline-*/accuracy.none/1/log.jsonl")
    assert "GO" in (said := log.read_text())
    assert "evaluating:" not in said


def test_a_second_run_computes_nothing_again(site) -> None:
    second = site.call("run", str(site.layout.release("demo")), "--approve")
    assert second.returncode == ExitCode.GO, second.stderr
    flow = site.flow("demo")
    computed = {stage for (stage, _), result in flow.results().items() if not result.reused}
    acting = {"resolve", "staging", "staging_down", "canary", "settle", "rollback", "report"}
    assert computed <= acting
    assert flow.result("accuracy", flow.chosen_recipe(TARGET)).reused
    assert flow.result("canary", f"{TARGET}:100").judgement.summary == "already in production"


@pytest.mark.thorough
def test_a_second_demo_trains_and_computes_nothing_again(site) -> None:
    production = pointers(site).production
    assert site.run("up") == ExitCode.GO, site.output
    assert "(made before)" in site.output
    assert pointers(site).production == production
    assert site.flow("demo").result("canary", f"{TARGET}:100").judgement.summary == "already in production"
    assert read_traffic(site.layout).failed == 0


@pytest.mark.thorough
def test_a_killed_run_goes_on_where_it_was_and_catches_an_engine_that_quantizes_again(site) -> None:
    stop_traffic(site.layout)  # nobody counts it here; the next release of the demo starts it again
    policy = yaml.safe_load((site.layout.configs / "policies" / "demo.yaml").read_text())
    policy["staging"]["golden_match_fraction"] = 0.0  # else the golden outputs catch it before served accuracy does
    (site.layout.configs / "policies" / "no-golden.yaml").write_text(yaml.safe_dump(policy))
    config = site.release("second-quantizer", recipes=["fp8"], targets=["cpu_engine_int4"], policy="no-golden")
    arguments = ["run", str(config), "--approve"]
    first = subprocess.Popen(site.command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    stage = _wait_for_stage(site, "build", first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    os.kill(stage, signal.SIGKILL)
    second = site.call(*arguments)
    assert second.returncode == ExitCode.NO_GO, second.stderr
    flow = site.flow("second-quantizer")
    finished = [flow.result(*of) for of in (("download", ""), ("quantize", "fp8"), ("accuracy", "fp8"))]
    assert [result.reused for result in finished] == [True] * 3
    assert not flow.result("build", "cpu_engine_int4").reused
    assert verdict(site, "second-quantizer", "accuracy", "fp8") is Verdict.GO
    assert verdict(site, "second-quantizer", "served_accuracy", "cpu_engine_int4") is Verdict.NO_GO
    assert not [line for line in site.processes() if "cpu_engine_int4" in line]


def _wait_for_stage(site, name: str, runner: subprocess.Popen[str], seconds: float = 600.0) -> int:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert runner.poll() is None, runner.stderr.read() if runner.stderr else ""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (process / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if ["llm_pipeline.stages", name] == arguments[3:5] and str(site.layout.root) in " ".join(arguments):
                return int(process.name)
        time.sleep(0.3)
    raise AssertionError(f"stage {name} did not start")


def test_a_release_by_cost_measures_each_candidate_and_takes_what_is_shown_to_be_cheapest(site) -> None:
    policy = yaml.safe_load((site.layout.configs / "policies" / "demo.yaml").read_text())
    policy["load_test"] |= {
        "windows": 4,
        "search": {"maximum_multiple": 3, "resolution": 0.5, "window_seconds": 2, "minimum_requests": 40},
    }
    (site.layout.configs / "policies" / "by-cost.yaml").write_text(yaml.safe_dump(policy))
    workload = yaml.safe_load(site.layout.release("demo").read_text())["workload"] | {"duration_seconds": 3}
    recipes = ["none", "int4_awq"]  # made before: what a choice by cost adds is their load tests
    changes = {"recipes": recipes, "ladder": {"objective": "cost"}, "policy": "by-cost", "workload": workload}
    released = site.call("run", str(site.release("by-cost", **changes)), "--approve")
    assert released.returncode == ExitCode.GO, released.stderr

    flow = site.flow("by-cost")
    measured = {recipe: flow.result("load_test", f"{TARGET}:{recipe}").metrics for recipe in recipes}
    chosen = flow.result("choose", TARGET).metrics
    own = measured[chosen["recipe"]]
    for metrics in measured.values():
        cost = TokenCost.of_metrics(metrics)
        assert cost is not None
        assert cost.estimate == pytest.approx(0.05 / 3600 / metrics["output_tokens_per_second"] * 1e6, rel=0.3)
        assert cost.upper >= TokenCost.of_metrics(own).lower  # none is shown to be cheaper than what was taken
    assert pointers(site).production.recipe == chosen["recipe"]
    assert answer(site) == "12"


def test_a_candidate_that_turns_slow_in_production_is_rolled_back_without_a_lost_request(site) -> None:
    before = pointers(site)
    assert before.production is not None
    made = next(recipe for recipe in ("none", "int4_awq") if recipe != before.production.recipe)
    site.release("demo-rollback", like="demo-rollback", recipes=[made])  # its candidate needs no making
    assert site.run("rollback") == ExitCode.GO, site.output
    after = pointers(site)
    assert (after.production, after.previous) == (before.production, before.previous)
    canary = [
        result.judgement for (stage, _), result in site.flow("demo-rollback").results().items() if stage == "canary"
    ]
    assert Verdict.NO_GO in [judgement.verdict for judgement in canary if judgement is not None], site.output
    assert answer(site) == "12"


def test_production_goes_back_to_the_previous_release_on_request(site) -> None:
    before = pointers(site)
    serves = before.production.release_id
    back = site.call("rollback", "-d", str(site.layout.deployment), TINY.id, TARGET, "--from", serves)
    assert back.returncode == ExitCode.GO, back.stderr
    assert before.previous is not None
    assert pointers(site).production.repository == before.previous.repository
    assert answer(site) == "12"


@pytest.mark.thorough
def test_a_pretrained_chat_model_is_released_in_int8_because_naive_int4_costs_it_too_much(chat_site) -> None:
    production, previous = pointers(chat_site).production, pointers(chat_site).previous
    assert (previous.recipe, production.recipe) == ("none", "int8_weight_only"), chat_site.output
    flow = chat_site.flow(CHAT.release)
    gates = {of: result.judgement.verdict for of, result in flow.results().items() if result.judgement is not None}
    assert gates.pop(("accuracy", "int4_naive_g64")) is Verdict.NO_GO
    assert {"accuracy", "staging", "served_accuracy", "load_test", "canary"} <= {stage for stage, _ in gates}
    assert set(gates.values()) == {Verdict.GO}
    assert "photosynthesis" in answer(chat_site).lower()
    assert read_traffic(chat_site.layout).failed == 0


@pytest.mark.thorough
def test_a_gpu_target_goes_the_same_path_and_its_engine_is_loaded_on_no_other_host(site, tmp_path) -> None:
    stop_traffic(site.layout)
    with gpu_site(site, tmp_path / "host") as host:
        wrong = host.run(gpu="H200")  # the double knows no answers yet
        assert wrong.returncode == ExitCode.INFRASTRUCTURE
        assert "golden prompts as the checkpoint that was judged" in wrong.stderr
        host.learn_answers()
        done = host.run(gpu="H200")
        assert done.returncode == ExitCode.GO, done.stderr
        flow = site.flow("gpu")
        assert flow.result("quantize", flow.chosen_recipe("h200")).reused
        engine = EngineDescription.read(site.store.fetch(flow.artifact("build", "h200", "engine")))
        assert engine.host.gpus[0].name == "NVIDIA H200"
        assert engine.checkpoint == flow.artifact("quantize", flow.chosen_recipe("h200"), "checkpoint")
        assert verdict(site, "gpu", "served_accuracy", "h200") is Verdict.GO
        assert read_place(site.store, "h200").production.repository == flow.artifact("package", "h200", "repository")
        elsewhere = host.run(gpu="L40S")
        assert elsewhere.returncode == ExitCode.BAD_INPUT
        assert "GPU 0 is NVIDIA L40S (sm89), it was built on NVIDIA H200 (sm90)" in elsewhere.stderr


def test_down_leaves_no_process_no_port_and_no_shared_memory(site) -> None:
    assert site.shared_memory() != []
    stop_traffic(site.layout)
    assert site.run("down") == ExitCode.GO
    assert site.processes() == []
    assert site.listening_ports() == set()
    assert site.shared_memory() == []
