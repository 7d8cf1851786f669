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


class _Tested(BaseHook):
    """A connection with a test of its own."""

    conn_name_attr: str
    default_conn_name: str

    def __init__(self, **connection: str) -> None:
        super().__init__()
        self._name = connection.get(self.conn_name_attr, self.default_conn_name)

    def test_connection(self) -> tuple[bool, str]:
        """What the button shows."""
        try:
            return True, self._seen(self.get_connection(self._name))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the button shows
            return False, str(error)

    def _seen(self, connection: Any) -> str:
        """What answers there."""
        raise NotImplementedError


class HubHook(_Tested):
    """The hub that models come from: its endpoint, and a token as password."""

    conn_name_attr = "hub_conn_id"
    default_conn_name = "llm_hub"
    conn_type = "llm_hub"
    hook_name = "LLM hub"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The form of the connection."""
        return {
            "hidden_fields": ["schema", "login", "extra"],
            "relabeling": {"host": "Endpoint", "password": "Token"},
            "placeholders": {"host": "https://huggingface.co", "port": _PORT},
        }

    def _seen(self, connection: Any) -> str:
        """Whose token it is, if the hub knows it."""
        from huggingface_hub import HfApi

        who = HfApi(endpoint=_endpoint(connection), token=connection.password or False).whoami()
        return f"the token is that of {who['name']}"


class StoreHook(_Tested):
    """A store in S3: key id and secret, the bucket, and its endpoint where it is not AWS's."""

    conn_name_attr = "store_conn_id"
    default_conn_name = "llm_store"
    conn_type = "llm_store"
    hook_name = "LLM store in S3"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The form of the connection."""
        return {
            "hidden_fields": ["extra"],
            "relabeling": {"host": "Endpoint", "schema": "Bucket", "login": "Key id", "password": "Secret key"},
            "placeholders": {"host": "empty for AWS", "port": _PORT},
        }

    def _seen(self, connection: Any) -> str:
        """That the key may list the bucket."""
        import boto3

        keys = {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
        client = boto3.client("s3", endpoint_url=_endpoint(connection), **keys)
        client.list_objects_v2(Bucket=connection.schema, MaxKeys=1)
        return f"the key may list {connection.schema}"
