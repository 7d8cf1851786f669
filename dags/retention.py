"""One Airflow DAG for each deployment that a release config names: it removes what nobody needs any more."""

from llm_pipeline_airflow.retention_dag import retention_dags

globals().update(retention_dags())
