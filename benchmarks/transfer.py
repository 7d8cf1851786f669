"""Time what moves weights, each part beside the tool that people use for it today, in turn, on the same machine.

    make bench-transfer                              # 2 GB, about ten minutes on two cores
    python benchmarks/transfer.py --megabytes 200 --only hub,verify

`hub` is a verified download beside `hf download`, which does not verify, from the demo's hub. `s3` is publication
and fetch, hashed and verified, beside `aws s3 cp --recursive` on moto's S3 server. `publish` makes an artifact of
many small files, every one of them on disk at the end, beside `cp -r` and `sync`. `verify` is beside `sha256sum` on
all cores. Medians of whole processes, from their start; the page cache stays as it is, for both alike.

On loopback nothing but processors limits: the servers are one Python process each, moto's hashes what it gets, and
shares the cores with its client.

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from goals import at_least, at_most

from llm_pipeline.base.entry import interruptible
from llm_pipeline.demo.hub import publish_revision

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

import s3_server  # noqa: E402 - of the tests

HUB_RATIO = 0.95
S3_RATIO = 1.0
S3_PEAK_MEGABYTES = 200
PUBLISH_RATIO = 1 / 3
"""Our publication hashes every file and brings each one to the disk before the artifact exists."""
VERIFY_RATIO = 0.9

AWSCLI = "awscli==1.46.*"
MODEL = "bench/random"
PARTS = ("hub", "s3", "publish", "verify")
_INTERRUPTED = 130
_WORK = Path(__file__).with_name("transfer_work.py")
_STARTER = Path(__file__).with_name("transfer_timed.py")
_S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_DEFAULT_REGION": s3_server.REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Measured:
    """One process from start to end, with all that it started and waited for.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Processor time, user and system.
        peak_bytes: The largest resident memory of one of its processes.
        output: What it wrote to its standard output.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


@dataclass
class Compared:
    """The same work by us and by a peer, several times."""

    ours: list[Measured] = field(default_factory=list)
    peer: list[Measured] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Our throughput as a share of the peer's: more than 1 is faster."""
        return seconds(self.peer) / seconds(self.ours)

    @property
    def peak_bytes(self) -> int:
        """Our largest resident memory in any of the runs."""
        return max(run.peak_bytes for run in self.ours)


def seconds(runs: Sequence[Measured]) -> float:
    """Median wall time."""
    return statistics.median(run.seconds for run in runs)


def compare(rounds: int, ours: Callable[[], Measured], peer: Callable[[], Measured]) -> Compared:
    """Run both in turn, so that a slow minute of the machine meets both."""
    compared = Compared()
    for _ in range(rounds):
        compared.ours.append(ours())
        compared.peer.append(peer())
    return compared


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Measured:
    """Run a command to its end, after all earlier writes have reached the disk.

    Raises:
        RuntimeError: It fails; the message ends with what it wrote last.
    """
    os.sync()
    with tempfile.TemporaryDirectory(prefix="bench-timed-") as place:
        figures, output, errors = (Path(place) / name for name in ("figures.json", "output", "errors"))
        starter = [sys.executable, "-I", "-S", str(_STARTER), str(figures), *command]
        with output.open("wb") as out, errors.open("wb") as err:
            surroundings = os.environ | dict(environment or {})
            process = subprocess.Popen(starter, stdout=out, stderr=err, env=surroundings, start_new_session=True)
            try:
                code = process.wait()
            finally:
                if process.poll() is None:  # we were interrupted
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code:
            raise RuntimeError(f"{command[0]} ended with {code}:\n{errors.read_text(errors='replace')[-2000:]}")
        return Measured(**json.loads(figures.read_text()), output=output.read_text())


@dataclass(frozen=True)
class Bench:
    """One benchmark's place and size.

    Attributes:
        place: A directory of its own, removed at the end.
        repository: The model repository, as files.
        repository_bytes: Its size.
        small: The directory of small files.
        small_files: How many.
        rounds: How often each side runs.
    """

    place: Path
    repository: Path
    repository_bytes: int
    small: Path
    small_files: int
    rounds: int

    def fresh(self, name: str) -> Path:
        """A directory that does not exist."""
        path = self.place / name
        shutil.rmtree(path, ignore_errors=True)
        return path


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, help="size of the repository (10^6 bytes)")
    parser.add_argument("--files", type=int, default=10_000, help="how many small files")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs; the median counts")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    sys.stdout.reconfigure(line_buffering=True)  # a pipe shows each line as it comes
    try:
        with interruptible():
            return _measure(options, chosen)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _measure(options: argparse.Namespace, chosen: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="bench-transfer-") as name:
        place = Path(name)
        repository, small = place / "repository", place / "small"
        repository_bytes = write_repository(repository, options.megabytes)
        write_small_files(small, options.files)
        bench = Bench(place, repository, repository_bytes, small, options.files, options.rounds)
        measures = {"hub": _hub, "s3": _s3, "publish": _publish, "verify": _verify}
        goals = [goal for part in PARTS if part in chosen for goal in measures[part](bench)]
    return 0 if all(goals) else 1


def write_repository(directory: Path, megabytes: int) -> int:
    """Write a sound model of about that many megabytes (10^6 bytes) in four shards; returns its exact size in bytes."""
    directory.mkdir(parents=True)
    random, columns, rows, index = np.random.default_rng(1), 2048, 8192, dict[str, str]()
    layers = max(4, round(megabytes * 1e6 / (2 * rows * columns)))
    rows = min(rows, int(megabytes * 1e6 / layers / columns / 2))
    size = 2 * rows * columns
    for number in range(4):
        names = [
            f"model.layers.{n}.mlp.up_proj.weight" for n in range(number * layers // 4, (number + 1) * layers // 4)
        ]
        header = {
            name: {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [order * size, (order + 1) * size]}
            for order, name in enumerate(names)
        }
        text, shard = json.dumps(header).encode(), f"model-{number + 1:05}-of-00004.safetensors"
        index |= dict.fromkeys(names, shard)
        with (directory / shard).open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            for _ in names:  # with one bit of the exponent clear no number is NaN or infinite
                stream.write((random.integers(0, 2**16, size // 2, dtype=np.uint16) & np.uint16(0xBFFF)).tobytes())
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": columns,
        "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "num_hidden_layers": layers,
    }  # fmt: skip
    vocabulary = {f"token{number}": number for number in range(32000)}
    for name, document in {
        "model.safetensors.index.json": {"metadata": {"total_size": layers * size}, "weight_map": index},
        "config.json": config,
        "generation_config.json": {"eos_token_id": 2},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "tokenizer.json": {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary}},
    }.items():
        (directory / name).write_text(json.dumps(document))
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Random weights\n")
    return sum(path.stat().st_size for path in directory.iterdir())


def write_small_files(directory: Path, count: int) -> None:
    """Write files of random sizes in a hundred directories."""
    random = np.random.default_rng(2)
    sizes = random.integers(200, 8_000, size=count)
    for number, size in enumerate(sizes):
        path = directory / f"part-{number % 100:02}" / f"{number:05}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(size))


@contextmanager
def _hub_process(root: Path) -> Iterator[str]:
    """The endpoint of a hub with the repositories below a directory, while it runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "llm_pipeline.demo.hub", "--root", str(root), "--port", str(port)]
    server = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _hub(bench: Bench) -> list[bool]:
    root = bench.fresh("hub")
    publish_revision(root, MODEL, bench.repository, "random weights")
    hf = str(Path(sys.executable).with_name("hf"))
    with _hub_process(root) as endpoint:

        def ours() -> Measured:
            return _work("download", endpoint, MODEL, str(bench.fresh("download")))

        def peer() -> Measured:
            quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
            environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(bench.fresh("hf-home")), **quiet}
            return run([hf, "download", MODEL], environment)

        compared = compare(bench.rounds, ours, peer)
    shutil.rmtree(root)
    _print_sides("download, verified", "hf download", compared, bench.repository_bytes)
    return [at_least("hub_download_to_hf_download", compared.ratio, HUB_RATIO)]


def _s3(bench: Bench) -> list[bool]:
    aws = _install_awscli(bench.place / "awscli")
    uploads, downloads = Compared(), Compared()
    for _ in range(bench.rounds):
        with s3_server.serve_s3() as server:  # a new one each time: it keeps what it got
            bucket = server.bucket()
            store = {"uri": f"s3://{bucket}/store", "endpoint": server.endpoint, "cache": str(bench.place / "cache")}
            uploads.ours.append(_s3_work(server, "publish", json.dumps(store), str(bench.repository)))
            digest = uploads.ours[-1].output.strip()
            bench.fresh("cache")
            downloads.ours.append(_s3_work(server, "fetch", json.dumps(store), digest))
            bench.fresh("cache")
            prefix = f"s3://{bucket}/store/artifacts/checkpoint/{digest}"
            downloads.peer.append(_aws(aws, server, prefix, str(bench.fresh("copy"))))
            bench.fresh("copy")
        with s3_server.serve_s3() as server:
            uploads.peer.append(_aws(aws, server, str(bench.repository), f"s3://{server.bucket()}/copy"))
    _print_sides("publish to S3", "aws s3 cp, upload", uploads, bench.repository_bytes)
    _print_sides("fetch from S3", "aws s3 cp, download", downloads, bench.repository_bytes)
    peak = max(uploads.peak_bytes, downloads.peak_bytes) / 1e6
    return [
        at_least("s3_upload_to_aws_s3_cp", uploads.ratio, S3_RATIO),
        at_least("s3_download_to_aws_s3_cp", downloads.ratio, S3_RATIO),
        at_most("s3_peak_memory", peak, S3_PEAK_MEGABYTES, "MB"),
    ]


def _install_awscli(place: Path) -> str:
    """The peer's own interpreter: its versions do not meet ours."""
    run([sys.executable, "-m", "venv", str(place)])
    run([str(place / "bin" / "pip"), "install", "--quiet", AWSCLI])
    return str(place / "bin" / "aws")


def _s3_work(server: s3_server.S3Server, *arguments: str) -> Measured:
    return _work(*arguments, AWS_ENDPOINT_URL=server.endpoint, **_S3_ENVIRONMENT)


def _aws(aws: str, server: s3_server.S3Server, source: str, destination: str) -> Measured:
    command = [aws, "s3", "cp", "--recursive", "--only-show-errors", "--endpoint-url", server.endpoint]
    return run([*command, source, destination], _S3_ENVIRONMENT)


def _publish(bench: Bench) -> list[bool]:
    def ours() -> Measured:
        return _work("publish", _local_store(bench.fresh("store")), str(bench.small))

    def peer() -> Measured:
        copy = bench.fresh("copy")
        return run(["sh", "-c", 'cp -r "$1" "$2" && sync -f "$2"', "sh", str(bench.small), str(copy)])

    compared = compare(bench.rounds, ours, peer)
    name = f"publish_{bench.small_files}_files"
    print(f"{name}: {seconds(compared.ours):.2f} s; cp -r and sync: {seconds(compared.peer):.2f} s")
    return [at_least(f"{name}_to_cp_and_sync", compared.ratio, PUBLISH_RATIO)]


def _verify(bench: Bench) -> list[bool]:
    goals = []
    for name, directory in (("repository", bench.repository), (f"{bench.small_files}_files", bench.small)):
        store = _local_store(bench.fresh("store"))
        digest = _work("publish", store, str(directory)).output.strip()
        goals.append(_verify_one(name, bench, store, digest, directory))
        bench.fresh("store")
    return goals


def _verify_one(name: str, bench: Bench, store: str, digest: str, directory: Path) -> bool:
    count = os.cpu_count() or 1
    pipe = f'find "$1" -type f -print0 | xargs -0 -P {count} -n 1 sha256sum'
    compared = compare(
        bench.rounds,
        lambda: _work("verify", store, digest),
        lambda: run(["sh", "-c", pipe, "sh", str(directory)]),
    )
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    _print_sides(f"verify {name}", "sha256sum", compared, size)
    return at_least(f"verify_{name}_to_sha256sum", compared.ratio, VERIFY_RATIO)


def _local_store(path: Path) -> str:
    return json.dumps({"uri": path.as_uri()})


def _work(*arguments: str, **environment: str) -> Measured:
    return run([sys.executable, str(_WORK), *arguments], {"PYTHONPATH": str(REPOSITORY), **environment})


def _print_sides(ours: str, peer: str, compared: Compared, size: int) -> None:
    for name, runs in ((ours, compared.ours), (peer, compared.peer)):
        print(f"{name:<22}{size / 1e6 / seconds(runs):>7.0f} MB/s")


if __name__ == "__main__":
    sys.exit(main())
