"""One Airflow DAG for each deployment that a release config names: it removes what nobody needs any more."""

from llm_pipeline_airflow.deployment_dags import deployment_dags
from llm_pipeline_airflow.settings import release_folders

globals().update(deployment_dags("retention", release_folders(__file__)))
