"""Plain Hugging Face `generate` behind FastAPI, and the same model on our Triton deployment, at the same service level.

    .envs/control/bin/python benchmarks/plain_serving.py                     # the demo's model, 17 minutes
    .envs/control/bin/python benchmarks/plain_serving.py --checkpoint DIR    # any other that both can serve

An article of the field reports 15 times the requests of plain serving. It measured both sides overloaded, with a median
of 42 s: that serves nobody. Here the question is which rate each side holds while 95 % of the requests meet the service
level (goodput, Zhong et al., DistServe, arXiv 2401.09670). Same client, same prompts, same arrivals, one thread each,
in turn: each seed searches the rate of every server, and a ratio's interval is Student's t over the seeds. What the
article measured is printed beside it: requests a second of many users who never stop asking.

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from goals import goal

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch, ServiceLevel
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.config.workload import Workload
from llm_pipeline.demo.services import TINY, DemoLayout, DemoModel
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.loadtest.gate import good, void_reason
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.outcome import RatePoint
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.session import highest_passed, search_highest_rate
from llm_pipeline.loadtest.token_counter import open_counter
from llm_pipeline.loadtest.workload import TrafficSource
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import start_server, stop_server
from llm_pipeline.statistics.intervals import critical_value

REPOSITORY = Path(__file__).resolve().parents[1]
MODEL_PYTHON = REPOSITORY / ".envs" / "model" / "bin" / "python"
TRITON_HOME = REPOSITORY / ".envs" / "triton"
PLACE = REPOSITORY / ".pipeline" / "plain_serving"
PACKAGES = (
    "fastapi==0.136.3",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "annotated-doc==0.0.7",
    "typing-inspection==0.4.5",
)
"""Pure Python, without what they need, which the model environment has."""

POLICY = LoadTestPolicy(
    service_level=ServiceLevel(first_token_milliseconds=250, end_to_end_milliseconds=1000), attainment=0.95
)
WORKLOAD = Workload(
    prompts="workloads/demo.jsonl",
    rate_per_second=10,
    duration_seconds=10,
    prompt_tokens=(8, 48),
    output_tokens=(16, 48),
)
SEARCH = RateSearch(resolution=0.1)
FEWEST_REQUESTS = 80
LONGEST_SECONDS = 20.0
MOST_TIMES = 32.0
OVERLOAD_USERS = 64
START_SECONDS = 60
PLAIN = "plain, one at a time"
WEIGHT_FORMATS = ("fp32", "int8")


@dataclass
class Arm:
    """One server and what was found.

    Attributes:
        rates: Highest rate that met the service level, one a seed, in requests a second.
        overload: Requests a second of `OVERLOAD_USERS` users, one a seed.
        overload_seconds: Median time of one of those requests.
    """

    name: str
    client: LoadClient
    rates: list[float] = field(default_factory=list)
    overload: list[float] = field(default_factory=list)
    overload_seconds: list[float] = field(default_factory=list)
    void: int = 0


def main() -> int:
    """Start the servers, measure them in turn, print the table and the goals; returns the exit code."""
    options = _options()
    PLACE.mkdir(parents=True, exist_ok=True)
    checkpoint = options.checkpoint or demo_model()
    engines = engines_of(checkpoint)
    with tempfile.TemporaryDirectory(prefix="plain-serving-") as scratch, ExitStack() as stack:
        arms = [_arm(stack, PLAIN, _plain(checkpoint, 1, scratch))]
        arms.append(
            _arm(stack, f"plain, static batches of {options.batch}", _plain(checkpoint, options.batch, scratch))
        )
        for weight_format in WEIGHT_FORMATS:
            served = _triton(engines / weight_format, weight_format, Path(scratch))
            arms.append(_arm(stack, f"Triton, {weight_format} weights", served))
        source = TrafficSource(WORKLOAD, REPOSITORY / "configs", count_tokens=open_counter(checkpoint))
        for seed in range(options.seeds):
            for arm in arms if seed % 2 == 0 else arms[::-1]:
                _measure(arm, source, seed, options.seconds)
    print(_table(arms))
    return 0 if all(list(_goals(arms))) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face checkpoint; by default the demo's model")
    parser.add_argument("--seeds", type=int, default=5, choices=range(3, 51), metavar="3..50")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one probe, longer at low rates")
    parser.add_argument("--batch", type=int, default=8, help="size of plain serving's static batches")
    return parser.parse_args()


def demo_model(model: DemoModel = TINY) -> Path:
    """A demo's model where the demo made it already, else one of our own."""
    if (made := DemoLayout(model=model).checkpoint).is_dir():
        return made
    if not (own := PLACE / model.release).is_dir():
        _run("-m", model.maker, "--output", str(own))
    return own


def engines_of(checkpoint: Path) -> Path:
    """The engines of a checkpoint, built once."""
    directory = PLACE / "engines" / checkpoint.resolve().as_posix().strip("/").replace("/", "-")
    directory.mkdir(parents=True, exist_ok=True)
    _run("benchmarks/plain_serving.py", "build", str(checkpoint), str(directory))
    return directory


def target(weight_format: str) -> Target:
    """The target of an engine; limits as `configs/targets/cpu.yaml` has them."""
    limits = EngineLimits(
        maximum_sequences=32, maximum_tokens_per_request=2048, maximum_batched_tokens=512,
        maximum_queued_requests=512, threads=1,
    )  # fmt: skip
    return Target(
        name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu", weight_format=weight_format,
        limits=limits,
    )  # fmt: skip


def build(target: Target, checkpoint: Path, destination: Path) -> None:
    """Build an engine in the model environment; it appears only when it is complete."""
    partial = destination.with_suffix(".partial")
    ref = ArtifactRef(kind="checkpoint", digest="0" * 64)
    inputs = BuildInputs(checkpoint=checkpoint, target=target, dtype="float16", checkpoint_ref=ref)
    engine_builder("openvino_cpu").build(inputs, partial)
    partial.rename(destination)


def _packages() -> Path:
    if not (PLACE / "packages" / "uvicorn").is_dir():
        _run("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PLACE / "packages"), *PACKAGES)
    return PLACE / "packages"


def _run(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([str(MODEL_PYTHON), *arguments], cwd=REPOSITORY, env=environment, check=True, stdout=sys.stderr)


@contextmanager
def _plain(checkpoint: Path, batch: int, scratch: str) -> Iterator[Endpoint]:
    """The FastAPI server, for as long as the block runs."""
    (port,) = free_ports(1)
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{_packages()}"}
    program = ["benchmarks/plain_serving_app.py", str(checkpoint), "--port", str(port), "--batch", str(batch)]
    with (Path(scratch) / f"plain-{batch}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(MODEL_PYTHON), *program], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
        )
        try:
            _await(f"http://127.0.0.1:{port}/health", process, Path(log.name))
            yield Endpoint(url=f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()


@contextmanager
def _triton(engine: Path, weight_format: str, scratch: Path) -> Iterator[Endpoint]:
    """Our deployment of an engine, for as long as the block runs."""
    repository, state = scratch / f"repository-{weight_format}", scratch / f"state-{weight_format}"
    ref = ArtifactRef(kind="engine", digest="0" * 64)
    write_repository(engine, (), {}, target(weight_format), repository, engine_ref=ref)
    ports = ServerPorts(**dict(zip(("http", "grpc", "metrics", "openai"), free_ports(4), strict=True)))
    try:
        server = start_server(repository, ports, triton_home=TRITON_HOME, python=MODEL_PYTHON, state=state)
        yield server.endpoint
    finally:
        stop_server(state)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310 - loopback
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    raise SystemExit(f"the plain server did not start:\n{log.read_text()}")


def _arm(stack: ExitStack, name: str, served: object) -> Arm:
    endpoint = stack.enter_context(served)  # type: ignore[arg-type]
    return Arm(name, stack.enter_context(LoadClient(endpoint, processes=1)))


def _measure(arm: Arm, source: TrafficSource, seed: int, seconds: float) -> None:
    """The highest rate and the overload of one server with one seed; the first one warms it up."""
    if not arm.rates:  # alone and in a crowd: a runtime compiles for shapes that it meets for the first time
        for users in (4, OVERLOAD_USERS):
            arm.client.send(source.closed_loop(users, seconds, 1000 + users, maximum_requests=5000))
    first = _probe(arm, source, seed, arm.rates[-1] if arm.rates else WORKLOAD.rate_per_second, seconds)
    points = search_highest_rate(
        first, MOST_TIMES * first.rate_per_second, SEARCH, lambda rate: _probe(arm, source, seed, rate, seconds)
    )
    arm.rates.append(highest_passed(points) or math.nan)
    measured = arm.client.send(source.closed_loop(OVERLOAD_USERS, seconds, seed, maximum_requests=5000))
    answered = measured.records.where(measured.records.answered)
    arm.overload.append(len(answered) / measured.window_seconds)
    arm.overload_seconds.append(float(np.median(answered["total_seconds"])))
    print(f"seed {seed}  {arm.name:<28} {arm.rates[-1]:8.1f} requests/s at the service level", flush=True)


def _probe(arm: Arm, source: TrafficSource, seed: int, rate: float, seconds: float) -> RatePoint:
    """One rate. Answers must have their length, and a small model fills some with its end token: no text, no fault."""
    window = max(seconds, min(LONGEST_SECONDS, FEWEST_REQUESTS / rate))
    traffic = source.open_loop(rate, window, seed)
    measured = arm.client.send(traffic)
    if void_reason(measured.records, POLICY):
        arm.void += 1
        measured = arm.client.send(traffic)
    judged = measured.records.where(measured.records["fault"] != Fault.EMPTY)
    share = float(good(judged, POLICY.service_level).mean())
    return RatePoint(
        rate_per_second=rate,
        good_fraction=share,
        good_per_second=share * rate,
        verdict=Verdict.GO if share >= POLICY.attainment else Verdict.NO_GO,
        window=f"{arm.name} {seed} {rate:g}",
    )


@dataclass(frozen=True)
class Times:
    """How many times plain serving's figure another server's is, with a two-sided 95 % interval over seeds."""

    ratio: float
    lower: float
    upper: float

    @classmethod
    def of(cls, figures: Sequence[float], plain: Sequence[float]) -> Times:
        """The ratio of two figures that were measured seed by seed."""
        logs = np.log(np.array(figures) / np.array(plain))
        reach = critical_value(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        return cls(*(math.exp(float(logs.mean()) + shift) for shift in (0.0, -reach, reach)))

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.lower:.2f} to {self.upper:.2f})"


def _table(arms: Sequence[Arm]) -> str:
    plain, level = arms[0], POLICY.service_level
    head = f"{'server':<30}{'requests/s at the SLO':>22}{'times plain':>24}{'overloaded, 1/s':>17}{'p50, s':>8}"
    head += f"{'times plain':>24}{'void':>6}"
    rows = [
        f"{arm.name:<30}{_mean(arm.rates):>22.1f}{Times.of(arm.rates, plain.rates)!s:>24}{_mean(arm.overload):>17.1f}"
        f"{_mean(arm.overload_seconds):>8.2f}{Times.of(arm.overload, plain.overload)!s:>24}{arm.void:>6}"
        for arm in arms
    ]
    slo = f"SLO: 95 % within {level.first_token_milliseconds:g} ms to the first token and "
    slo += (
        f"{level.end_to_end_milliseconds:g} ms to the end; overloaded: {OVERLOAD_USERS} users; {len(plain.rates)} seeds"
    )
    return "\n".join(["", head, *rows, slo, ""])


def _mean(figures: Sequence[float]) -> float:
    return float(np.exp(np.log(figures).mean()))


def _goals(arms: Sequence[Arm]) -> Iterator[bool]:
    plain = arms[0]
    for arm in arms[2:]:
        times = Times.of(arm.rates, plain.rates)
        measured = f"{times} times the goodput"
        yield goal(f"{arm.name}, beside {PLAIN}", measured, "shown to be above 1", met=times.lower > 1.0)
        times = Times.of(arm.rates, arms[1].rates)
        measured = f"{times} times the goodput"
        yield goal(f"{arm.name}, beside {arms[1].name}", measured, "shown to be above 1", met=times.lower > 1.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        for weight_format in WEIGHT_FORMATS:
            if not (place := Path(sys.argv[3], weight_format)).exists():
                build(target(weight_format), Path(sys.argv[2]), place)
    else:
        sys.exit(main())
