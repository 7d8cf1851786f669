"""A publication to S3 that is killed at its requests: at some spread over them, or, `thorough`, at each in turn."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.config.store import StoreModel
from llm_pipeline.store import open_store
from llm_pipeline.store.s3_blobs import connect

SURE_TO_BE_DONE = 100
EVENTS = {"before it is sent": "before-send.s3", "after it is answered": "response-received.s3"}


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("llm_pipeline.store.s3_blobs.PART_BYTES", 1000)
    directory = tmp_path / "weights"
    directory.mkdir()
    (directory / "model.bin").write_bytes(os.urandom(1500))
    (directory / "config.json").write_text("{}")
    return directory


def killing(event: str, at: int) -> Callable[..., None]:
    """A hook of botocore that kills its process the n-th time."""
    lock, seen = threading.Lock(), [0]

    def kill(**_given: object) -> None:
        with lock:
            seen[0] += 1
            if seen[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)

    return kill


def publish_in_a_child(config: StoreModel, weights: Path, client: Any, event: str, at: int) -> bool:
    """Whether a publication, killed at the n-th event, came to its end."""
    child = os.fork()
    if child == 0:
        client.meta.events.register(event, killing(event, at))
        store = S3Store(config)
        store._blobs._connected = os.getpid(), client  # never used before the fork: it has no connections to share
        store.publish("checkpoint", weights)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.thorough), 9], ids=["each", "some"])
@pytest.mark.parametrize("moment", EVENTS)
def test_killed_at_any_request_there_is_no_artifact_or_a_whole_one_and_the_same_call_completes_it(
    s3_config: StoreModel, weights: Path, moment: str, step: int
) -> None:
    client, store = connect(s3_config), open_store(s3_config)
    kills = 0
    for at in range(2, SURE_TO_BE_DONE, step):
        if publish_in_a_child(s3_config, weights, client, EVENTS[moment], at):
            break
        kills += 1
        for artifact in store.artifacts():
            assert store.verify(artifact.ref) == []
        ref = store.publish("checkpoint", weights)
        assert store.verify(ref) == []
        assert all(left.transfer for left in store.leftovers(timedelta(seconds=-5)))
        store.remove(ref)
    assert kills >= 12 // step
