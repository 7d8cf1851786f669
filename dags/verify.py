"""One Airflow DAG for each deployment that a release config names: every night it checks what serves."""

from llm_pipeline_airflow.deployment_dags import deployment_dags
from llm_pipeline_airflow.settings import release_folders

globals().update(deployment_dags("verify", release_folders(__file__)))
