"""The interpreters of the runners' tests run this instead of `-m llm_pipeline.stages`: the real stage process, with a
stage that does what its configuration says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from pydantic import BaseModel

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import made_progress
from llm_pipeline.release import execute, time_limit
from llm_pipeline.release.contract import Stage, StageContext, StageOutput

_BEAT = 'while :; do echo beat >> "$0"; sleep 0.05; done'

log = get_logger("tests.stage")


class Script(BaseModel):
    """What the stage does: lines to log, a child to start that writes to a file, tenths of a second in which it makes
    progress, whether it hears signals, seconds to take then, how to end.
    """

    lines: int = 0
    heartbeat: str = ""
    progress: int = 0
    hang: bool = False
    seconds: float = 0.0
    error: str = ""


def run(context: StageContext[Script]) -> StageOutput:
    script = context.config
    for number in range(script.lines):
        log.info(f"line {number}\N{LINE SEPARATOR}end")
        time.sleep(0.005)
    if script.heartbeat:
        subprocess.Popen(["/bin/sh", "-c", _BEAT, script.heartbeat])
    for _ in range(script.progress):
        made_progress()
        time.sleep(0.1)
    if script.hang:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(script.seconds)
    if script.error == "terminal":
        raise ConfigError("the test asked for a terminal error", hint="nothing to do")
    if script.error == "transient":
        raise Transient("the test asked for a transient error")
    return StageOutput(metrics={"lines": script.lines})


if __name__ == "__main__":
    stage = Stage(name="choose", version=1, config=Script, run=run, reusable="TEST_REUSABLE" in os.environ)
    execute.load_stage = lambda _name: stage
    time_limit.GRACE_SECONDS = float(os.environ.get("TEST_GRACE_SECONDS", time_limit.GRACE_SECONDS))
    from llm_pipeline.release.execute import main

    raise SystemExit(main(sys.argv[1:]))
