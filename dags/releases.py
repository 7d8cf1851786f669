"""One Airflow DAG for each release config (`LLM_PIPELINE_RELEASES`, or this repository's `configs/releases`)."""

from llm_pipeline_airflow.discovery import release_dags

globals().update(release_dags())
