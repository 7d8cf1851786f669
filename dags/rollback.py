"""One Airflow DAG for each deployment that a release config names: a form to leave a release."""

from llm_pipeline_airflow.rollback_dag import rollback_dags

globals().update(rollback_dags())
