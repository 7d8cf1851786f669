"""One Airflow DAG for each deployment that a release config names: a form to leave a release."""

from llm_pipeline_airflow.deployment_dags import deployment_dags
from llm_pipeline_airflow.settings import release_folders

globals().update(deployment_dags("rollback", release_folders(__file__)))
