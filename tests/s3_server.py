"""A real S3 API server for tests: moto's, in a process of its own, with its credentials in the environment.

Writes are served one at a time, so that conditional ones are atomic, as Amazon's are (moto's own check and write are
two steps), and an upload that is gone is said to be. Parts may be small, and listings come in short pages.

What it does not prove: that Amazon refuses bytes that differ from their checksum (moto stores what it is told), its
timing of conditional writes (409 under contention), bucket policies, KMS, expiring credentials, the SHA-256 of parts in
listings of unfinished uploads, and pages of unfinished uploads.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

REGION = "us-east-1"
_SETTINGS = {
    "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": "5242880",
    "MOTO_S3_DEFAULT_MAX_KEYS": "7",
    "S3_UPLOAD_PART_MIN_SIZE": "1",
}


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
        [sys.executable, __file__, str(port)],
        env=os.environ | _SETTINGS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, process)
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server on loopback takes connections."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the server did not start")


class _OneWriteAtATime:
    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start_response)
        with self._lock:
            return self._application(environ, start_response)


def _know_which_uploads_are_gone() -> None:
    """A part for an upload that is gone, or its completion, is a 404 at Amazon's; moto fails."""
    from moto.s3.exceptions import NoSuchUpload
    from moto.s3.models import S3Backend

    def checked(served: Callable[..., Any]) -> Callable[..., Any]:
        def serve(backend: S3Backend, bucket_name: str, multipart_id: str, *given: Any, **named: Any) -> Any:
            if multipart_id not in backend.get_bucket(bucket_name).multiparts:
                raise NoSuchUpload(upload_id=multipart_id)
            return served(backend, bucket_name, multipart_id, *given, **named)

        return serve

    S3Backend.upload_part = checked(S3Backend.upload_part)
    S3Backend.complete_multipart_upload = checked(S3Backend.complete_multipart_upload)


def _main(port: int) -> None:
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    _know_which_uploads_are_gone()
    application = _OneWriteAtATime(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
