"""Time what moves weights, each part beside the tool that people use for it today, in turn, on the same machine.

    make bench-transfer                              # 2 GB, about ten minutes on two cores
    python benchmarks/transfer.py --megabytes 200 --only hub,verify

`hub` is a verified download beside `hf download`, which does not verify, from the demo's hub. `s3` is publication
and fetch, hashed and verified, beside `aws s3 cp --recursive` on moto's S3 server. `verify` is beside `sha256sum` on
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
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from goals import at_least, at_most

from llm_pipeline.demo.hub import publish_revision

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

import s3_server  # noqa: E402 - of the tests

HUB_TIME_RATIO = 1.1
S3_RATIO = 1.0
S3_PEAK_MEGABYTES = 200
VERIFY_RATIO = 0.9

AWSCLI = "awscli==1.46.*"
MODEL = "bench/random"
PARTS = ("hub", "s3", "verify")
_WORK = Path(__file__).with_name("transfer_work.py")
_S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_DEFAULT_REGION": s3_server.REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class Compared:
    """The same work by us and by a peer, several times, in seconds of whole processes."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Our throughput as a share of the peer's: more than 1 is faster."""
        return statistics.median(self.peer) / statistics.median(self.ours)


def compare(rounds: int, ours: Callable[[], Ran], peer: Callable[[], Ran]) -> Compared:
    """Run both in turn, so that a slow minute of the machine meets both."""
    compared = Compared()
    for _ in range(rounds):
        compared.ours.append(ours().seconds)
        compared.peer.append(peer().seconds)
    return compared


class Ran(NamedTuple):
    """One process from start to end, and what it wrote to its standard output."""

    seconds: float
    output: str


def run(*command: str | Path, **environment: str) -> Ran:
    """Run a command to its end, after all earlier writes have reached the disk."""
    os.sync()
    begun = time.monotonic()
    done = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True)
    return Ran(time.monotonic() - begun, done.stdout)


@dataclass(frozen=True)
class Bench:
    """One benchmark's place and size.

    Attributes:
        place: A directory of its own, removed at the end.
        repository: The model repository, as files.
        repository_bytes: Its size.
        rounds: How often each side runs.
    """

    place: Path
    repository: Path
    repository_bytes: int
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
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs; the median counts")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a pipe shows each line as it comes
    with tempfile.TemporaryDirectory(prefix="bench-transfer-") as name:
        place = Path(name)
        repository = place / "repository"
        repository_bytes = write_repository(repository, options.megabytes)
        bench = Bench(place, repository, repository_bytes, options.rounds)
        measures = {"hub": _hub, "s3": _s3, "verify": _verify}
        goals = [goal for part in PARTS if part in chosen for goal in measures[part](bench)]
    return 0 if all(goals) else 1


def write_repository(directory: Path, megabytes: int) -> int:
    """Write a sound model of about that many megabytes (10^6 bytes) in four shards; returns its exact size in bytes."""
    directory.mkdir(parents=True)
    random, columns, rows = np.random.default_rng(1), 2048, int(megabytes * 1e6 / 4 / 2 / 2048)
    size, index = 2 * rows * columns, dict[str, str]()
    for number in range(4):
        name, shard = f"model.layers.{number}.mlp.up_proj.weight", f"model-{number + 1:05}-of-00004.safetensors"
        header = json.dumps({name: {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, size]}}).encode()
        index[name] = shard
        # With one bit of the exponent clear no number is NaN or infinite.
        weights = random.integers(0, 2**16, size // 2, dtype=np.uint16) & np.uint16(0xBFFF)
        (directory / shard).write_bytes(struct.pack("<Q", len(header)) + header + weights.tobytes())
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": columns,
        "intermediate_size": rows, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "num_hidden_layers": 4,
    }  # fmt: skip
    vocabulary = {f"token{number}": number for number in range(32000)}
    for name, document in {
        "model.safetensors.index.json": {"metadata": {"total_size": 4 * size}, "weight_map": index},
        "config.json": config,
        "generation_config.json": {"eos_token_id": 2},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "tokenizer.json": {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary}},
    }.items():
        (directory / name).write_text(json.dumps(document))
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Random weights\n")
    return sum(path.stat().st_size for path in directory.iterdir())


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
    hf = Path(sys.executable).with_name("hf")
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    with _hub_process(root) as endpoint:
        compared = compare(
            bench.rounds,
            lambda: _work("download", endpoint, MODEL, str(bench.fresh("download"))),
            lambda: run(hf, "download", MODEL, HF_ENDPOINT=endpoint, HF_HOME=str(bench.fresh("hf-home")), **quiet),
        )
    shutil.rmtree(root)
    _print_sides("download, verified", "hf download", compared, bench.repository_bytes)
    return [at_most("hub_download_time_to_hf_download", 1 / compared.ratio, HUB_TIME_RATIO)]


def _s3(bench: Bench) -> list[bool]:
    run(sys.executable, "-m", "venv", bench.place / "awscli")  # the peer's own interpreter: its versions are not ours
    run(bench.place / "awscli/bin/pip", "install", "--quiet", AWSCLI)
    aws = [bench.place / "awscli/bin/aws", "s3", "cp", "--recursive", "--only-show-errors"]
    uploads, downloads, peaks = Compared(), Compared(), list[int]()
    for _ in range(bench.rounds):
        with s3_server.serve_s3() as server:  # a new one each time: it keeps what it got
            access = {"AWS_ENDPOINT_URL": server.endpoint, **_S3_ENVIRONMENT}
            bucket, cache = f"s3://{server.bucket()}", bench.fresh("cache")
            store = json.dumps({"uri": f"{bucket}/store", "endpoint": server.endpoint, "cache": str(cache)})
            published = _work("publish", store, str(bench.repository), **access)
            bench.fresh("cache")
            fetched = _work("fetch", store, _digest(published), **access)
            bench.fresh("cache")
            prefix = f"{bucket}/store/artifacts/checkpoint/{_digest(published)}"
            downloads.peer.append(run(*aws, prefix, bench.fresh("copy"), **access).seconds)
        with s3_server.serve_s3() as server:
            access["AWS_ENDPOINT_URL"] = server.endpoint
            uploads.peer.append(run(*aws, bench.repository, f"s3://{server.bucket()}/copy", **access).seconds)
        uploads.ours.append(published.seconds)
        downloads.ours.append(fetched.seconds)
        peaks += [json.loads(ran.output)["peak_bytes"] for ran in (published, fetched)]
    bench.fresh("copy")
    _print_sides("publish to S3", "aws s3 cp, upload", uploads, bench.repository_bytes)
    _print_sides("fetch from S3", "aws s3 cp, download", downloads, bench.repository_bytes)
    return [
        at_least("s3_upload_to_aws_s3_cp", uploads.ratio, S3_RATIO),
        at_least("s3_download_to_aws_s3_cp", downloads.ratio, S3_RATIO),
        at_most("s3_peak_memory", max(peaks) / 1e6, S3_PEAK_MEGABYTES, "MB"),
    ]


def _verify(bench: Bench) -> list[bool]:
    hashing = f'find "$1" -type f -print0 | xargs -0 -P {os.cpu_count() or 1} -n 1 sha256sum'
    store = json.dumps({"uri": bench.fresh("store").as_uri()})
    digest = _digest(_work("publish", store, str(bench.repository)))
    compared = compare(
        bench.rounds, lambda: _work("verify", store, digest), lambda: run("sh", "-c", hashing, "sh", bench.repository)
    )
    bench.fresh("store")
    _print_sides("verify", "sha256sum", compared, bench.repository_bytes)
    return [at_least("verify_to_sha256sum", compared.ratio, VERIFY_RATIO)]


def _work(*arguments: str, **environment: str) -> Ran:
    return run(sys.executable, _WORK, *arguments, PYTHONPATH=str(REPOSITORY), **environment)


def _digest(published: Ran) -> str:
    return str(json.loads(published.output)["digest"])


def _print_sides(ours: str, peer: str, compared: Compared, size: int) -> None:
    for name, seconds in ((ours, compared.ours), (peer, compared.peer)):
        print(f"{name:<22}{size / 1e6 / statistics.median(seconds):>7.0f} MB/s")


if __name__ == "__main__":
    sys.exit(main())
