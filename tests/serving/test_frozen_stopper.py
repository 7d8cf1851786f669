"""Whoever was about to stop or start a server, was frozen and wakes up: real processes over a real Triton server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from llm_pipeline.base.errors import Fenced
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.serving.triton_server import find_server, stop_server

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

OLD, NEW = FencingToken(epoch=4, lease=4), FencingToken(epoch=5, lease=5)
OLD_DIGEST, NEW_DIGEST = "a" * 64, "b" * 64

STOPPER = """
import os, signal, sys
from pathlib import Path
from llm_pipeline.base.errors import Fenced
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.serving.triton_server import stop_server
os.kill(os.getpid(), signal.SIGSTOP)  # right before it stops what it found
try:
    stop_server(Path(sys.argv[1]), digest=sys.argv[2], token=FencingToken(epoch=4, lease=4))
except Fenced as error:
    sys.exit(f"fenced: {error}")
"""


def test_a_frozen_rollback_that_wakes_up_leaves_the_newer_server_alone_whatever_it_serves(slot) -> None:
    slot.start(digest=OLD_DIGEST, token=OLD)
    for digest in (OLD_DIGEST, NEW_DIGEST):  # the same release again, and another one
        frozen = subprocess.Popen(
            [sys.executable, "-c", STOPPER, str(slot.state), OLD_DIGEST], stderr=subprocess.PIPE, text=True
        )
        os.waitpid(frozen.pid, os.WUNTRACED)
        slot.stop(token=NEW)
        server = slot.start(digest=digest, token=NEW)
        os.kill(frozen.pid, signal.SIGCONT)
        _, said = frozen.communicate(timeout=60)
        assert said.startswith("fenced"), said
        assert "taken over with epoch 5" in said
        assert find_server(slot.state) == server
        assert server.ready


def test_a_stop_names_what_it_stops_and_a_start_with_an_old_token_starts_nothing(slot) -> None:
    slot.stop(token=NEW)
    with pytest.raises(Fenced):
        slot.start(digest=OLD_DIGEST, token=OLD)
    assert find_server(slot.state) is None
    server = slot.start(digest=NEW_DIGEST, token=NEW)
    assert stop_server(slot.state, digest=OLD_DIGEST, token=NEW) is False
    (slot.state / "server.json").unlink()  # as while it loads: the command line still tells
    assert stop_server(slot.state, digest=OLD_DIGEST, token=NEW) is False
    assert server.ready
    assert stop_server(slot.state, digest=NEW_DIGEST, token=NEW) is True
    assert not server.alive
