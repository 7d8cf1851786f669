"""What is known of loopback ports before a server is started on them."""

import shutil
import socket
import subprocess
import sys

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.ports import require_free

_ASK = """
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.ports import require_free
try:
    require_free(ServerPorts(http=18000, grpc=18001, metrics=18002, openai=18003), what="a server")
except ConfigError as error:
    print(error.message, error.hint, sep="|")
"""


def test_a_port_that_is_taken_is_refused_by_who_listens_on_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"http port {port} is in use by pid"):
            require_free(ServerPorts(http=port, grpc=18001, metrics=18002, openai=18003), what="a server")


def test_a_host_whose_loopback_interface_is_down_is_told_so_at_once() -> None:
    """A server would start there, bind its ports, and be asked in vain until its time is up."""
    alone = [str(shutil.which("unshare")), "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this user can make no network of its own")
    answer = subprocess.run(
        [*alone, sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
    )
    message, hint = answer.stdout.strip().split("|")
    assert message == "127.0.0.1 cannot be reached: Network is unreachable"
    assert "ip link set lo up" in hint
