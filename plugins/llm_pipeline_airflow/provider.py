"""What Airflow's provider registry is told about this package: `provider.yaml`, as Airflow's own providers have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def get_provider_info() -> dict[str, Any]:
    """The package's provider metadata."""
    return dict(yaml.safe_load(Path(__file__).with_name("provider.yaml").read_bytes()))
