"""The download as a stage: what it publishes and reuses, and that no log of it shows a presigned address."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from resolved_release import request_below

from llm_pipeline.base.logging import LogRelay
from llm_pipeline.hub.access import Hub
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.store import open_store

from .conftest import TOKEN_VARIABLE, LocalHub


def request(local_hub: LocalHub, hub: Hub, tmp_path: Path, *, endpoint: str | None = None) -> StageRequest:
    model = HubSource(hub).resolve("demo/tiny", "main")
    config = {
        "model_id": model.id,
        "commit": model.commit,
        "files": [file.model_dump(mode="json") for file in model.files],
        "hub": {"endpoint": endpoint or local_hub.endpoint, "token_variable": TOKEN_VARIABLE},
    }
    return request_below(tmp_path, "download", config)


def test_the_stage_publishes_exactly_the_verified_files_and_reuses_them_from_another_address(
    local_hub: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    local_hub.publish()
    result = execute(request(local_hub, hub, tmp_path))
    assert isinstance(result, StageResult), result
    checkpoint = open_store((tmp_path / "store").as_uri()).fetch(result.artifacts["checkpoint"])
    names = {path.name for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith("_")}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    assert result.metrics["files"] == 3
    assert result.metrics["bytes"] == result.metrics["fetched_bytes"]
    again = execute(request(local_hub, hub, tmp_path, endpoint="http://127.0.0.1:9"))
    assert isinstance(again, StageResult)
    assert (again.reused, again.key) == (True, result.key)


SIGNATURE = "5f0e1d2c3b4a59687786a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"


def redirect_to_a_signed_url(local_hub: LocalHub, commit: str, *, path: str = "") -> None:
    """Answer as the public hub does for a large file: with a redirect to a storage's presigned URL."""
    path = path or f"demo/tiny/resolve/{commit}/model.safetensors"
    signed = f"{local_hub.endpoint}/{path}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature={SIGNATURE}&Key-Pair-Id=K2"
    local_hub.fail("status", "model.safetensors", status=302, method=None, times=2, headers={"Location": signed})


@pytest.mark.parametrize("path", ["", "nowhere"])
def test_the_log_of_a_download_holds_no_signature_also_when_its_user_debugs_the_client(
    local_hub: LocalHub, hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    commit = local_hub.publish()
    asked = request(local_hub, hub, tmp_path)
    redirect_to_a_signed_url(local_hub, commit, path=path)
    (asked_path := tmp_path / "request.json").write_text(asked.model_dump_json())
    log, result = tmp_path / "log.jsonl", tmp_path / "result.json"
    command = [sys.executable, "-m", "llm_pipeline.stages", "download"]
    command += ["--request", str(asked_path), "--result", str(result), "--log", str(log)]
    debugging = {"HF_DEBUG": "1", "HF_HUB_VERBOSITY": "debug"}
    subprocess.run(command, env=os.environ | debugging, check=False, timeout=60)
    assert ("error" in json.loads(result.read_text())) == bool(path)
    assert path or local_hub.downloads("model.safetensors")
    caplog.set_level(logging.INFO)
    relay = LogRelay(logging.getLogger("parent"))
    for line in log.read_text().splitlines():
        relay.relay(line)
    assert caplog.text
    assert SIGNATURE not in log.read_text() + result.read_text() + caplog.text


def test_a_client_that_its_user_debugs_is_quiet_in_airflow_s_processes_too(local_hub: LocalHub, tmp_path: Path) -> None:
    commit = local_hub.publish()
    redirect_to_a_signed_url(local_hub, commit)
    script = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG)\n"
        "import llm_pipeline_airflow.faults\n"
        "from llm_pipeline.hub.access import connect\n"
        f"hub = connect({local_hub.endpoint!r}, 'NO_TOKEN')\n"
        f"hub.api.hf_hub_download('demo/tiny', 'model.safetensors', revision={commit!r}, local_dir={str(tmp_path)!r})\n"
        "logging.getLogger('urllib3.connectionpool').warning('Retrying after %r: %s', OSError('no'), '/x?sig=abcdef')\n"
        "logging.getLogger('urllib3.connectionpool').debug('never')\n"
    )
    debugging = {"HF_DEBUG": "1", "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG"}
    command, environment = [sys.executable, "-c", script], os.environ | debugging
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert "Retrying after OSError('no'): /x?***" in run.stderr
    assert "never" not in run.stderr
    assert SIGNATURE not in run.stderr + run.stdout
