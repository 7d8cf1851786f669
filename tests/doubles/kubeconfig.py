"""A kubeconfig for the doubles of Kubernetes' API."""

from __future__ import annotations

import json
from pathlib import Path


def write_kubeconfig(directory: Path, port: int, context: str = "test") -> Path:
    """One whose only context is the server of this port."""
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    named = {"name": context, "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [named]}
    path = directory / "kubeconfig"
    path.write_text(json.dumps({**config, "users": [{"name": "u", "user": {}}], "current-context": context}))
    return path
