"""What Airflow's provider registry is told about this package; read while Airflow starts, so it imports nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The package's provider metadata."""
    return {
        "package-name": "llm-pipeline",
        "name": "LLM pipeline",
        "description": "One LLM release from a hub revision to live traffic, with evidence at every gate.",
        "extra-links": ["llm_pipeline_airflow.links.ReleaseReportLink"],
    }
