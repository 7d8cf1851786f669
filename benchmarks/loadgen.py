"""Our load client beside perf_analyzer, both against one echo model of the real tritonserver.

    .envs/control/bin/python benchmarks/loadgen.py    # about three minutes, downloads perf_analyzer

A load generator that is itself out of breath measures itself. A rate is "clean" when the tool offered it within 2 %,
sent with a lag of less than 20 ms (p99) and had no failures. Both climb the same ladder of constant rates; what
counts is requests by second of its own processor time at its highest clean rate, for how many cores there are is not
its doing. Start-up is taken off: a run of a few requests costs that much, too. Server and clients share the machine:
let nothing else run there.

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from goals import at_least, at_most, goal
from numpy.typing import NDArray

from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.measure import LoadClient, client_lag_seconds
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENTS = REPOSITORY / ".envs"
TOY_CONFIG = REPOSITORY / "tests" / "serving" / "toy_repository" / "llm" / "config.pbtxt"
LIBRARIES = ENVIRONMENTS / "triton" / "nvidia_pytriton.libs"
PORTS = ServerPorts(http=18300, grpc=18301, metrics=18302)
LADDER = (125, 250, 500, 1000, 2000, 3000, 4000)
TOKENS = 4
FEW = 20
LAG_RATE = 2000
LAG_TOKENS = 1  # so that the server, which shares the cores, keeps up with that rate
AGREEMENT_RATE = 50
MOST_LAG_SECONDS = 0.02
RATE_TOLERANCE = 0.02
PROGRAM_SECONDS = 90

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """What one tool did at one rate.

    Attributes:
        rate: Requests a second that it was asked for.
        kept: Rate of its sends, as a share of that.
        lag_seconds: How late it sent (p99), by its own schedule.
        processor_seconds: Of its processes, without their start.
        first_token_seconds: Median, from its send.
    """

    rate: float
    requests: int
    kept: float
    lag_seconds: float
    failed: int
    processor_seconds: float
    first_token_seconds: float

    @property
    def clean(self) -> bool:
        """Whether the tool did what it was asked for."""
        kept = abs(self.kept - 1.0) <= RATE_TOLERANCE
        return kept and self.lag_seconds < MOST_LAG_SECONDS and not self.failed and self.processor_seconds > 0

    @property
    def rate_per_core(self) -> float:
        """Requests by second of processor time."""
        return self.requests / self.processor_seconds

    def __str__(self) -> str:
        return (
            f"{self.rate:6.0f}/s  kept {self.kept:6.3f}  lag p99 {1e3 * self.lag_seconds:8.3f} ms  "
            f"failed {self.failed:4d}  {self.rate_per_core:7.0f} requests by core-second  "
            f"first token p50 {1e3 * self.first_token_seconds:6.2f} ms  "
            f"{'clean' if self.clean else 'not clean'}  load {os.getloadavg()[0]:.1f}"
        )


Tool = Callable[[float, int], Step]
"""Sends so many requests at a rate."""


def main() -> int:
    """Start the server, let each tool climb, print the goals; returns the exit code."""
    options = _options()
    perf_analyzer = _unpacked_perf_analyzer()
    print(f"starting at a load of {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="loadgen-") as scratch:
        place = Path(scratch)
        server = _server(place)
        try:
            met = _compare(server, perf_analyzer, place, options.seconds)
        finally:
            stop_server(place / "slot", drain_seconds=1)
    return 0 if all(met) else 1


def _compare(server: RunningServer, perf_analyzer: Path, place: Path, seconds: float) -> list[bool]:
    with LoadClient(Endpoint(url=server.http_url), processes=1, timeout_seconds=20) as client:
        tools: dict[str, Tool] = {
            "ours": _ours(client),
            "perf_analyzer": _without_start(_perf_analyzer(perf_analyzer, place)),
        }
        tools["ours"](AGREEMENT_RATE, FEW)  # the first requests of a server are slow
        best = {name: _climb(name, tool, seconds) for name, tool in tools.items()}
        on_time = [_ours(client, LAG_TOKENS)(LAG_RATE, int(LAG_RATE * seconds)) for _ in range(3)]
        agreement = [tool(AGREEMENT_RATE, int(AGREEMENT_RATE * seconds)) for tool in tools.values()]
    return list(_goals(best, on_time, agreement))


def _goals(best: dict[str, Step | None], on_time: Sequence[Step], agreement: Sequence[Step]) -> Iterator[bool]:
    highest = {name: step.rate if step else 0.0 for name, step in best.items()}
    print("highest clean rates: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in highest.items()))
    ours, theirs, what = best["ours"], best["perf_analyzer"], "clean rate per core, beside perf_analyzer"
    if ours is None or theirs is None:  # nothing is shown by a tool that the machine left no room for
        yield goal(what, "none: one of both had no clean rate", "at least 1 times", met=False)
    else:
        yield at_least(what, ours.rate_per_core / theirs.rate_per_core, 1.0, "times")
    yield at_most(
        f"schedule lag p99 at {LAG_RATE} requests/s", 1e3 * max(step.lag_seconds for step in on_time), 2.0, "ms"
    )
    apart = 1e3 * abs(agreement[0].first_token_seconds - agreement[1].first_token_seconds)
    yield at_most("first token p50, apart from perf_analyzer's raw time stamps", apart, 1.0, "ms")


def _climb(name: str, tool: Tool, seconds: float) -> Step | None:
    """The highest rate that was clean; the climb ends where two tries in a row were not."""
    best = None
    for rate in LADDER:
        for _ in range(2):
            step = tool(rate, int(rate * seconds))
            print(f"{name:<14}{step}", flush=True)
            if step.clean:
                best = step
                break
        else:
            break
    return best


def _traffic(rate: float, count: int, tokens: int = TOKENS) -> Traffic:
    requests = [LoadRequest(f"say this again, please: {number}", tokens) for number in range(count)]
    return Traffic.open_loop(requests, np.arange(count) / rate, count / rate)


def _ours(client: LoadClient, tokens: int = TOKENS) -> Tool:
    def send(rate: float, count: int) -> Step:
        measured = client.send(_traffic(rate, count, tokens))
        records = measured.records
        sends = np.sort(records["arrives_at"] + records["lag_seconds"])
        return Step(
            rate=rate,
            requests=count,
            kept=_kept(sends, rate),
            lag_seconds=client_lag_seconds(records),
            failed=int(np.count_nonzero(~records.answered)),
            processor_seconds=measured.client_processor_seconds,
            first_token_seconds=float(np.nanmedian(records["first_token_seconds"] - records["lag_seconds"])),
        )

    return send


def _perf_analyzer(program: Path, place: Path) -> Tool:
    """It has no streams over HTTP, so it sends over gRPC: all of its requests share a few connections."""
    prompt = place / "prompt.json"
    prompt.write_text(json.dumps({"data": [{"text_input": ["say this again"], "max_tokens": [TOKENS]}]}))

    def send(rate: float, count: int) -> Step:
        export = place / f"perf_analyzer-{time.monotonic_ns()}.json"
        options = (
            f"-m llm -i grpc -u 127.0.0.1:{PORTS.grpc} --streaming --async --shape text_input:1 --shape max_tokens:1 "
            f"--request-rate-range {rate:g}:{rate:g}:1 --request-distribution constant -s 100 -r 3 "
            f"--request-count {count}"
        ).split()
        command = [str(program), *options, "--input-data", str(prompt), "--profile-export-file", str(export)]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(program.parent)}
        before = _children_seconds()
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=PROGRAM_SECONDS)
        spent = _children_seconds() - before
        requests = json.loads(export.read_text())["experiments"][-1]["requests"]
        sends = np.sort([request["timestamp"] for request in requests]) * 1e-9
        whole = [request for request in requests if len(request["response_timestamps"]) == TOKENS]
        first = [request["response_timestamps"][0] - request["timestamp"] for request in whole]
        return Step(
            rate=rate,
            requests=len(requests),
            kept=_kept(sends, rate),
            lag_seconds=_lag(sends, rate),
            failed=len(requests) - len(whole),
            processor_seconds=spent,
            first_token_seconds=1e-9 * float(np.median(first)),
        )

    return send


def _without_start(tool: Tool) -> Tool:
    """The tool, less the processor time of a run of a few requests."""
    start = min(tool(FEW, FEW).processor_seconds for _ in range(2))

    def send(rate: float, count: int) -> Step:
        try:
            step = tool(rate, count)
        except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            print(f"gave up: {error}")
            return Step(rate, count, 0.0, MOST_LAG_SECONDS, count, 1.0, 0.0)
        return Step(**{**vars(step), "processor_seconds": step.processor_seconds - start})

    return send


def _kept(sends: Values, rate: float) -> float:
    return float((len(sends) - 1) / (sends[-1] - sends[0]) / rate)


def _lag(sends: Values, rate: float) -> float:
    """How late it sent (p99), for a tool that sends at a constant rate: by the schedule of its earliest send."""
    late = sends - np.arange(len(sends)) / rate
    return float(np.quantile(late - late.min(), 0.99))


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _server(place: Path) -> RunningServer:
    version = place / "repository" / "llm" / "1"
    version.mkdir(parents=True)
    shutil.copy(TOY_CONFIG, version.parent / "config.pbtxt")
    shutil.copy(Path(__file__).with_name("loadgen_echo.py"), version / "model.py")
    return start_server(
        place / "repository",
        PORTS,
        triton_home=ENVIRONMENTS / "triton",
        python=ENVIRONMENTS / "model" / "bin" / "python",
        state=place / "slot",
    )


def _unpacked_perf_analyzer() -> Path:
    """The program out of a client's wheel, with two libraries of the bundled tritonserver beside it."""
    home = ENVIRONMENTS / "perf_analyzer"
    if (program := home / "perf_analyzer").exists():
        return program
    home.mkdir(parents=True, exist_ok=True)
    wanted = ["tritonclient==2.51.0", "--no-deps", "--only-binary", ":all:", "--dest", str(home), "-q"]
    subprocess.run([sys.executable, "-m", "pip", "download", *wanted], check=True)
    with zipfile.ZipFile(next(home.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith("/bin/perf_analyzer"))
        temporary = home / "unpacked"
        temporary.write_bytes(wheel.read(member))
    for library, pattern in {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}.items():
        (home / library).unlink(missing_ok=True)
        (home / library).symlink_to(next(LIBRARIES.glob(pattern)))
    temporary.chmod(0o755)
    return temporary.rename(program)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each window")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
