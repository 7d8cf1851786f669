"""A real local hub that runs in a thread of a test, and small models to publish on it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from hub_access import HubAccessRules, access, restrict
from hub_faults import Fault, Faults, fault_middleware
from hub_uploads import LONGEST_COMMIT_BYTES, add_uploads
from huggingface_hub import constants
from loop_thread import LoopThread
from tiny_tokenizer import TOKENIZER

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.demo.hub import create_application, publish_revision

TOKEN_VARIABLE = "LLM_PIPELINE_TEST_TOKEN"
WEIGHTS_BYTES = 3_000_000
CONFIG = (
    b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, '
    b'"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, '
    b'"max_position_embeddings": 2048, "eos_token_id": 2}'
)


def safetensors_bytes(payload: int = WEIGHTS_BYTES, *, seed: int = 1) -> bytes:
    """A sound safetensors file with one tensor of that many bytes."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [payload], "data_offsets": [0, payload]}}).encode()
    body = bytes((seed * 31 + i * 7) % 251 for i in range(4096)) * (payload // 4096 + 1)
    return struct.pack("<Q", len(header)) + header + body[:payload]


@dataclass
class LocalHub:
    """A hub that runs in a thread of this process."""

    root: Path
    endpoint: str
    faults: Faults
    contents: dict[str, bytes] = field(default_factory=dict)

    def publish(self, model_id: str = "demo/tiny", **changes: bytes | None) -> str:
        """Publish a small model; `changes` replace (or with None, remove) files, `__` standing for a dot."""
        directory = self.root.parent / "source" / str(len(self.faults.requests)) / model_id
        contents: dict[str, bytes | None] = {
            "model.safetensors": safetensors_bytes(),
            "config.json": CONFIG,
            "tokenizer.json": TOKENIZER,
            "README.md": b"---\nlicense: apache-2.0\n---\n# Tiny\n",
        }
        contents |= {name.replace("__", "."): data for name, data in changes.items()}
        for name, data in contents.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if data is not None:
                path.write_bytes(data)
        self.contents = {name: data for name, data in contents.items() if data is not None}
        return publish_revision(self.root, model_id, directory, "upload")

    def restrict(self, model_id: str, *, readers: tuple[str, ...] = (), **rules: object) -> None:
        """Restrict a repository; `readers` are tokens."""
        hashed = tuple(sha256_bytes(token.encode()) for token in readers)
        restrict(self.root, model_id, HubAccessRules.model_validate({**rules, "readers": hashed}))

    def fail(self, kind: str, path_ends_with: str, **options: object) -> None:
        """Inject a fault."""
        self.faults.waiting.append(Fault.model_validate({"kind": kind, "path_ends_with": path_ends_with, **options}))

    def downloads(self, name: str = "") -> list[tuple[str, str | None]]:
        """Path and `Range` of every GET of a file so far."""
        return [
            (path.rpartition("/")[2], wanted)
            for method, path, wanted in self.faults.requests
            if method == "GET" and "/resolve/" in path and path.endswith(name)
        ]


@contextmanager
def serve_local_hub(directory: Path) -> Iterator[LocalHub]:
    """A hub on a free port, which does not speak Xet."""
    constants.HF_HUB_DISABLE_XET, os.environ["HF_HUB_DISABLE_XET"] = True, "1"
    root = directory / "hub"
    root.mkdir()
    faults = Faults()
    application = create_application(root, fault_middleware(faults), access, longest_bytes=LONGEST_COMMIT_BYTES)
    add_uploads(application)
    runner = web.AppRunner(application, shutdown_timeout=0.2)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    with LoopThread() as loop:
        try:
            yield LocalHub(root, f"http://127.0.0.1:{loop.await_(start())}", faults)
        finally:
            loop.await_(runner.cleanup())
