"""A real container engine for tests: Podman of this machine, or the one that LLM_PIPELINE_TEST_ENGINE names."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ENGINE = os.environ.get("LLM_PIPELINE_TEST_ENGINE", "podman")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LABEL = "label=app.kubernetes.io/managed-by=llm-pipeline"
_PODMAN = """\
#!/bin/sh
export CONTAINERS_CONF={root}/containers.conf CONTAINERS_REGISTRIES_CONF={root}/registries.conf
echo "WARN[0000] what Podman says beside its answers" >&2
exec {podman} --storage-driver=vfs --root={root}/root --runroot={root}/run --log-level=error "$@"
"""
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
"""Limits that need no privilege to set."""


@dataclass
class Engine:
    """The engine, and an image that programs of this machine are mounted into.

    Attributes:
        program: Its program, whose directory goes first in PATH.
        image: An image of a registry, by its tag.
        digest: The image's.
    """

    program: Path
    image: str
    digest: str

    def ask(self, *arguments: str) -> str:
        command = [self.program, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    def names(self, *options: str) -> list[str]:
        """The containers of stages; with `--all` also those that do not run."""
        return sorted(self.ask("ps", *options, f"--filter={_LABEL}", "--format={{.Names}}").split())

    def environment(self, python: str, *writable: Path) -> dict[str, Any]:
        """Settings of an environment whose containers have the programs of this machine."""
        paths = {"/usr", str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix}
        outer = [path for path in sorted(paths) if not any(path.startswith(f"{other}/") for other in paths)]
        mounts = [{"source": path} for path in outer] + [{"source": str(path), "writable": True} for path in writable]
        return {"runner": ENGINE, "image": self.image, "python": python, "network": "none", "mounts": mounts}


@contextmanager
def real_engine() -> Iterator[Engine]:
    """The engine; skips the test where there is none. Podman has all its state in a directory of its own."""
    needed = ["podman", "runc", "catatonit"] if ENGINE == "podman" else [ENGINE]
    if not all(map(shutil.which, needed)):
        pytest.skip(f"no container engine here: install {', '.join(needed)}")
    program = Path(str(shutil.which(ENGINE)))
    root = Path(tempfile.mkdtemp(prefix="podman-"))  # Podman takes no longer paths than 50 characters
    with _registry(root) as (registry, digest):
        if ENGINE == "podman":
            (root / "containers.conf").write_text(_CONFIGURATION)
            (root / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')
            (root / "podman").write_text(_PODMAN.format(root=root, podman=program))
            program = root / "podman"
            program.chmod(0o755)
        engine = Engine(program, f"{registry}/llm/model:1", digest)
        try:
            usr = "--mount=type=bind,source=/usr,target=/usr"
            engine.ask("run", "--rm", "--init", "--network=none", usr, engine.image, "/usr/bin/true")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"containers do not start here: {error.stderr}")
        yield engine
    shutil.rmtree(root)


class _Registry(SimpleHTTPRequestHandler):
    """Files below `v2/`, as a registry answers with them."""

    error_content_type = "application/json"
    error_message_format = '{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'

    def log_message(self, *_: Any) -> None:
        pass

    def guess_type(self, path: str) -> str:
        return MANIFEST if "/manifests/" in path else "application/octet-stream"


@contextmanager
def _registry(root: Path) -> Iterator[tuple[str, str]]:
    """The address of a registry with one image, and its digest.

    The image is directories to mount on, and the links that programs are started through.
    """
    made = root / "v2/llm/model"
    (made / "manifests").mkdir(parents=True)
    (made / "blobs").mkdir()

    def kept(kind: str, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        (made / "blobs" / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(data)}

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "sbin", "bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            if name in ("bin", "lib", "lib64"):
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
    layers = [kept("layer.v1.tar", layer.getvalue())]
    rootfs = {"type": "layers", "diff_ids": [layers[0]["digest"]]}
    config = kept("config.v1+json", json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode())
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
    digest = kept("manifest", json.dumps(manifest).encode())["digest"]
    for name in ("1", digest):
        shutil.copy(made / "blobs" / digest, made / "manifests" / name)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Registry, directory=str(root)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", digest
    server.shutdown()
    server.server_close()
