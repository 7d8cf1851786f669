"""The DAGs of each release config, and of each deployment that one names: see `[llm_pipeline] releases`."""

from llm_pipeline_airflow.discovery import all_dags

globals().update(all_dags(__file__))
