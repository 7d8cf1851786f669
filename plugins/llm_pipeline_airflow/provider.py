"""What Airflow's provider registry is told about this package; read while Airflow starts, so it imports nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The package's provider metadata."""
    return {
        "package-name": "llm-pipeline",
        "name": "LLM pipeline",
        "description": "One LLM release from a hub revision to live traffic, with evidence at every gate.",
        "config": {
            "llm_pipeline": {
                "description": "Where the release pipeline finds its configuration.",
                "options": {
                    "releases": {
                        "description": (
                            "Folders with release configs, separated by commas or line ends. Relative paths are looked "
                            "for beside the DAG file, then in the directories above it, up to the first that has any "
                            "of them: so every DAG bundle may have its own."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/srv/team-a/releases, /srv/team-b/releases",
                        "default": "releases, configs/releases",
                    },
                },
            },
        },
        "connection-types": [
            {"connection-type": "llm_hub", "hook-class-name": "llm_pipeline_airflow.hooks.HubHook"},
            {"connection-type": "llm_store", "hook-class-name": "llm_pipeline_airflow.hooks.StoreHook"},
        ],
        "extra-links": ["llm_pipeline_airflow.links.ReleaseReportLink"],
    }
