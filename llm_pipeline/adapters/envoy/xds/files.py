"""Files that Envoy watches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def replace_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file durably and by one rename, so that a reader sees the old one or the new one.

    Raises:
        OSError: The disk refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as stream:
        json.dump(document, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path)
