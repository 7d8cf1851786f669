"""One Airflow DAG for each deployment that a release config names: it rolls back canaries that nobody watches."""

from llm_pipeline_airflow.guard_dag import guard_dags

globals().update(guard_dags())
