"""One Airflow DAG for each release config of this file's project, or of those in `[llm_pipeline] releases`."""

from llm_pipeline_airflow.discovery import release_dags
from llm_pipeline_airflow.settings import release_folders

globals().update(release_dags(release_folders(__file__)))
