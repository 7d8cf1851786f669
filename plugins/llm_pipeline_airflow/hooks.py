"""Connection types for what a release talks to, with Airflow's "Test" button: the hub, and a store in S3.

The deployment names such connections for its secrets (`airflow_connections:`); a stage gets them as variables. Their
form has a port because the button of Airflow 3.3.2 answers "Bad Request" for a connection that has none.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

_PORT = "443"


def _endpoint(connection: Any) -> str | None:
    """Its URL, with the port; None where no host is named."""
    if not connection.host:
        return None
    return f"{connection.host}:{connection.port}" if connection.port else str(connection.host)


class HubHook(BaseHook):
    """The hub that models come from: its endpoint, and a token as password."""

    conn_name_attr = "hub_conn_id"
    default_conn_name = "llm_hub"
    conn_type = "llm_hub"
    hook_name = "LLM hub"

    def __init__(self, hub_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.hub_conn_id = hub_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The form of the connection."""
        return {
            "hidden_fields": ["schema", "login", "extra"],
            "relabeling": {"host": "Endpoint", "password": "Token"},
            "placeholders": {"host": "https://huggingface.co", "port": _PORT},
        }

    def test_connection(self) -> tuple[bool, str]:
        """Whether the hub knows the token, and whose it is."""
        from huggingface_hub import HfApi

        connection: Any = self.get_connection(self.hub_conn_id)
        try:
            who = HfApi(endpoint=_endpoint(connection), token=connection.password or False).whoami()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the button shows
            return False, str(error)
        return True, f"the token is that of {who['name']}"


class StoreHook(BaseHook):
    """A store in S3: key id and secret, the bucket, and its endpoint where it is not AWS's."""

    conn_name_attr = "store_conn_id"
    default_conn_name = "llm_store"
    conn_type = "llm_store"
    hook_name = "LLM store in S3"

    def __init__(self, store_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.store_conn_id = store_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The form of the connection."""
        return {
            "hidden_fields": ["extra"],
            "relabeling": {"host": "Endpoint", "schema": "Bucket", "login": "Key id", "password": "Secret key"},
            "placeholders": {"host": "empty for AWS", "port": _PORT},
        }

    def test_connection(self) -> tuple[bool, str]:
        """Whether the key may list the bucket."""
        import boto3

        connection: Any = self.get_connection(self.store_conn_id)
        keys = {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
        try:
            client = boto3.client("s3", endpoint_url=_endpoint(connection), **keys)
            client.list_objects_v2(Bucket=connection.schema, MaxKeys=1)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the button shows
            return False, str(error)
        return True, f"the key may list {connection.schema}"
