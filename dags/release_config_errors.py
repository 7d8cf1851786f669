"""No DAG: release configs with mistakes show up as this file's import error, and Airflow runs the others' DAGs."""

from llm_pipeline_airflow.discovery import check_release_configs
from llm_pipeline_airflow.settings import release_folders

check_release_configs(release_folders(__file__))
