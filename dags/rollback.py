"""One Airflow DAG for each deployment that a release config names: a form to leave a release."""

from llm_pipeline_airflow.deployment_dags import rollback_dags
from llm_pipeline_airflow.settings import release_folders

globals().update(rollback_dags(release_folders(__file__)))
