"""The deployment of tests that call commands: places of this host where nothing was ever started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def place_document(ports: Iterator[int]) -> dict[str, Any]:
    """A place: a staging server, and two slots behind an Envoy."""
    servers = ("staging", "blue", "green")
    place: dict[str, Any] = {
        name: {kind: next(ports) for kind in ("http", "grpc", "metrics", "openai")} for name in servers
    }
    return {**place, "router": {"port": next(ports), "admin_port": next(ports)}}


def write_bare_deployment(path: Path, store: str = "store", python: str = "") -> str:
    """Write a deployment without places, whose directories are beside its file; returns the path."""
    environments = {"control": python} if python else {}
    rest = {"work_root": "w", "state_root": "s", "environments": environments, "triton_home": "t"}
    path.write_text(f"store: {store}\n{yaml.safe_dump(rest)}")
    return str(path)


def write_deployment(root: Path, first_port: int, places: tuple[str, ...] = ("cpu",)) -> Path:
    """Write `here.yaml`, whose store, work and state lie below `root`, with ports from `first_port` on."""
    ports = iter(range(first_port, first_port + 50))
    document = {
        "store": f"file://{root}/store",
        "work_root": str(root),
        "state_root": str(root / "state"),
        "environments": {},
        "triton_home": str(root),
        "places": {name: place_document(ports) for name in places},
    }
    path = root / "here.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
