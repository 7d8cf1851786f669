"""Our load client beside aiperf and perf_analyzer, all of them against one echo model of the real tritonserver.

    .envs/control/bin/python benchmarks/loadgen.py    # about five minutes, downloads both

A load generator that is itself out of breath measures itself. A rate is "clean" when the tool offered it within 2 %,
sent with a lag of less than 20 ms (p99) and had no failures. Each tool climbs the same ladder of constant rates; what
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
from llm_pipeline.loadtest.client.messages import request_body
from llm_pipeline.loadtest.measure import LoadClient, client_lag_seconds
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.serving.protocols import TritonProtocol
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

WORDS_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
}
"""It counts words and needs no network, unlike the one that aiperf has built in."""

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
    tools_of = _installed_aiperf(), _unpacked_perf_analyzer()
    print(f"starting at a load of {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="loadgen-") as scratch:
        place = Path(scratch)
        server = _server(place)
        try:
            met = _compare(server, *tools_of, place, options.seconds)
        finally:
            stop_server(place / "slot", drain_seconds=1)
    return 0 if all(met) else 1


def _compare(server: RunningServer, aiperf: Path, perf_analyzer: Path, place: Path, seconds: float) -> list[bool]:
    endpoint = Endpoint(url=server.http_url)
    with LoadClient(endpoint, processes=1, timeout_seconds=20) as client:
        tools: dict[str, Tool] = {
            "ours": _ours(client),
            "perf_analyzer": _without_start(_perf_analyzer(perf_analyzer, place)),
            "aiperf": _without_start(_aiperf(aiperf, endpoint, place)),
        }
        tools["ours"](AGREEMENT_RATE, FEW)  # the first requests of a server are slow
        best = {name: _climb(name, tool, seconds) for name, tool in tools.items()}
        on_time = _worst_of_three(_ours(client, LAG_TOKENS), LAG_RATE, seconds)
        agreement = [tools[name](AGREEMENT_RATE, int(AGREEMENT_RATE * seconds)) for name in ("ours", "perf_analyzer")]
    return list(_goals(best, on_time, agreement))


def _goals(best: dict[str, Step | None], on_time: Step, agreement: Sequence[Step]) -> Iterator[bool]:
    highest = {name: step.rate if step else 0.0 for name, step in best.items()}
    print("highest clean rates: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in highest.items()))
    ours = best["ours"]
    for name, times in (("aiperf", 4.0), ("perf_analyzer", 1.0)):
        theirs, what = best[name], f"clean rate per core, beside {name}"
        if ours is None or theirs is None:  # nothing is shown by a tool that the machine left no room for
            yield goal(what, "none: one of both had no clean rate", f"at least {times:g} times", met=False)
        else:
            yield at_least(what, ours.rate_per_core / theirs.rate_per_core, times, "times")
    yield at_most(f"schedule lag p99 at {LAG_RATE} requests/s", 1e3 * on_time.lag_seconds, 2.0, "ms")
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


def _worst_of_three(tool: Tool, rate: float, seconds: float) -> Step:
    """The try with the largest lag; all of them are printed."""
    steps = [tool(rate, int(rate * seconds)) for _ in range(3)]
    print("\n".join(f"ours, on time {step}" for step in steps), flush=True)
    return max(steps, key=lambda step: step.lag_seconds)


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


def _aiperf(program: Path, endpoint: Endpoint, place: Path) -> Tool:
    """It has no endpoint of Triton's: its template endpoint reads our answers, and its trace holds our whole bodies."""
    tokenizer, template = place / "tokenizer", place / "template.json"
    tokenizer.mkdir()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (tokenizer / "tokenizer.json").write_text(json.dumps(WORDS_TOKENIZER))
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    template.write_text('{"text_input": {{ text|tojson }}}')  # wanted, though each body is given

    def send(rate: float, count: int) -> Step:
        directory = place / f"aiperf-{time.monotonic_ns()}"
        directory.mkdir()
        rows = (
            {"timestamp": round(1e3 * number / rate, 3), "payload": json.loads(request_body(request, TritonProtocol()))}
            for number, request in enumerate(_traffic(rate, count).requests)
        )
        (directory / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = (
            f"profile --model llm --endpoint-type template --url {endpoint.url} --streaming --fixed-schedule "
            f"--custom-endpoint /v2/models/llm/generate_stream --tokenizer {tokenizer} "
            f"--input-file {directory}/trace.jsonl --custom-dataset-type mooncake_trace --ui-type none "
            f"--request-timeout-seconds 60 --workers-max {max(1, len(os.sched_getaffinity(0)) // 2)} "
            f"--record-processor-service-count 1 --output-artifact-dir {directory} --no-gpu-telemetry "
            f"--no-server-metrics --extra-inputs payload_template:{template} --extra-inputs response_field:text_output"
        ).split()
        # HF_HUB_OFFLINE, with which it refuses a local tokenizer, is not handed on.
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        before = _children_seconds()
        subprocess.run([str(program), *options], env=environment, check=True, capture_output=True, timeout=240)
        lines = (directory / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        answered = [record["metrics"] for record in records if not record.get("error")]
        sends = np.sort([record["metadata"]["request_start_ns"] for record in records]) * 1e-9
        return Step(
            rate=rate,
            requests=count,
            kept=_kept(sends, rate),
            lag_seconds=_lag(sends, rate),
            failed=count - len(answered),
            processor_seconds=_children_seconds() - before,
            first_token_seconds=1e-3 * float(np.median([one["time_to_first_token"]["value"] for one in answered])),
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


def _installed_aiperf() -> Path:
    """An environment with aiperf in it: 1.2 GB, once."""
    home = ENVIRONMENTS / "aiperf"
    if not (program := home / "bin" / "aiperf").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "-q", "aiperf==0.13.0"], check=True)
    return program


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
