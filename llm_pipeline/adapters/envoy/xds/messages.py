"""The messages that everything is made of, and the files that Envoy watches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_pipeline.base.durable import replace_durably
from llm_pipeline.canary.router import ArmProtocol
from llm_pipeline.config.server_place import OpenAiSlot, SlotServer

Json = dict[str, Any]

LOCAL_HOST = "127.0.0.1"
TYPE = "type.googleapis.com/envoy"


def named(name: str, message: str, **fields: Any) -> Json:
    """An extension by its name, configured by a message of Envoy's API."""
    return {"name": name, "typed_config": {"@type": f"{TYPE}.{message}", **fields}}


def watched(directory: Path, file: str) -> Json:
    """A source of configuration: a file that is read again when its directory changes."""
    source = {"path": str(directory / file), "watched_directory": {"path": str(directory)}}
    return {"resource_api_version": "V3", "path_config_source": source}


def address(port: int, host: str = LOCAL_HOST) -> Json:
    """Where somebody listens."""
    return {"socket_address": {"address": host, "port_value": port}}


def address_text(host: str, port: int) -> str:
    """An address as the access log has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def discovery(version: str, resources: list[Json]) -> Json:
    """A file of resources, with the version that Envoy acknowledges."""
    return {"version_info": version, "resources": resources}


def replace_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file durably and by one rename, so that a reader sees the old one or the new one.

    Raises:
        OSError: The disk refuses.
    """
    replace_durably(path, json.dumps(document).encode())


def addresses_of(server: SlotServer, host: str, *, only_openai: bool = False) -> dict[ArmProtocol, tuple[str, int]]:
    """Host and port by protocol; `host` is where the ports of our own servers are."""
    if isinstance(server, OpenAiSlot):
        return {"http": server.address}
    if only_openai:
        return {"http": (host, server.openai)}
    return {"http": (host, server.http), "grpc": (host, server.grpc), "openai": (host, server.openai)}
