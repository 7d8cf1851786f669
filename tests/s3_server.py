"""A real S3 API server for tests: moto's, in a process of its own, with its credentials in the environment.

What it does not prove: Amazon's own timing of conditional writes (409 under contention), bucket policies, KMS, and
composite checksums as Amazon computes them.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    endpoint: str

    def client(self) -> Any:
        """A client of it, with whatever credentials."""
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.endpoint, region_name=REGION, aws_access_key_id="a", aws_secret_access_key="b"
        )

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"test-{uuid.uuid4().hex[:20]}"
        self.client().create_bucket(Bucket=name)
        return name


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    """A server that ends with the `with` block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("moto's server did not start")
