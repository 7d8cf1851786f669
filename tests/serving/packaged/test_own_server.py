"""Where a python model finds the HTTP endpoint of the server that it runs in."""

from __future__ import annotations

import pytest

from llm_pipeline.serving.models.own_server import ServerAddress


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], ("127.0.0.1", 8000, {})),
        (["--http-port=8100", "--grpc-port=8101"], ("127.0.0.1", 8100, {})),
        (["--http-port", "8100", "--http-address", "0.0.0.0"], ("127.0.0.1", 8100, {})),
        (["--http-address=10.0.0.7", "--allow-http=true"], ("10.0.0.7", 8000, {})),
        (["--http-restricted-api=model-repository:key=one"], ("127.0.0.1", 8000, {})),
        (["--http-restricted-api=health,inference:key=a=b"], ("127.0.0.1", 8000, {"key": "a=b"})),
    ],
)
def test_the_address_is_read_from_the_command_line(arguments, address):
    assert ServerAddress.of_arguments(["/opt/tritonserver/bin/tritonserver", *arguments, ""]) == address


def test_a_server_without_http_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="start it without --allow-http=false"):
        ServerAddress.of_arguments(["tritonserver", "--allow-http=false"])
