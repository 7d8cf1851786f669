"""A stage's process whose download ends badly: it crashes, is about to be killed, or gives its token away."""

from __future__ import annotations

import base64
import dataclasses
import os
import subprocess
import sys
import time
from urllib.parse import quote

from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.access import connect
from llm_pipeline.release import execute
from llm_pipeline.release.contract import Stage, StageContext, StageOutput
from llm_pipeline.release.execute import main

log = get_logger("tests.stage")
real_load_stage = execute.load_stage


def load_stage(name: str) -> Stage:
    return dataclasses.replace(real_load_stage(name), run=run)


def run(context: StageContext) -> StageOutput:
    access = context.config.hub
    headers = connect(access.endpoint, access.token_variable).headers()
    log.info("has the token", headers=sorted(headers))
    return {"crashed": crash, "killed": hang, "leaked": leak}[context.request.release_id](context, headers)


def crash(_context: StageContext, headers: dict[str, str]) -> StageOutput:
    raise RuntimeError(f"a fault while {len(headers)} headers are at hand")


def hang(_context: StageContext, _headers: dict[str, str]) -> StageOutput:
    time.sleep(60)
    raise AssertionError("nobody killed this stage")


def leak(context: StageContext, _headers: dict[str, str]) -> StageOutput:
    token = os.environ[context.config.hub.token_variable]
    log.warning("asked the hub", answer=quote(token))
    context.store.write_file("releases/leaked/report.html", f"<a href='https://hub?token={quote(token)}'>".encode())
    subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(0.2)", f"--token={token}"], check=True)
    return StageOutput(metrics={"request": base64.b64encode(f"Bearer {token}".encode()).decode()})


if __name__ == "__main__":
    execute.load_stage = load_stage
    raise SystemExit(main(sys.argv[1:]))
