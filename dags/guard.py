"""One Airflow DAG for each deployment that a release config names: it rolls back canaries that nobody watches."""

from llm_pipeline_airflow.deployment_dags import guard_dags
from llm_pipeline_airflow.settings import release_folders

globals().update(guard_dags(release_folders(__file__)))
