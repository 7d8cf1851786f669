"""Releases on Apache Airflow: operators, a DAG for each release config, and the report in the UI."""
