"""Files that Envoy watches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_pipeline.base.durable import replace_durably


def replace_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file durably and by one rename, so that a reader sees the old one or the new one.

    Raises:
        OSError: The disk refuses.
    """
    replace_durably(path, json.dumps(document).encode())
