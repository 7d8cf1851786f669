"""What is known of loopback ports before a server is started on them."""

import socket

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.ports import require_free


def test_a_port_that_is_taken_is_refused_by_who_listens_on_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"http port {port} is in use by pid"):
            require_free(ServerPorts(http=port, grpc=18001, metrics=18002, openai=18003), what="a server")
