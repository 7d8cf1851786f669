"""One Airflow DAG for each deployment that a release config names: every night it checks what serves."""

from llm_pipeline_airflow.deployment_dags import verify_dags
from llm_pipeline_airflow.settings import release_folders

globals().update(verify_dags(release_folders(__file__)))
