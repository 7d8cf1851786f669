"""An operator that runs one command of `llm-pipeline` about one target, on the host of that target's servers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from llm_pipeline.base.errors import ExitCode, StageCrashed
from llm_pipeline.base.logging import LogRelay
from llm_pipeline.canary.record import Phase, latest_canary
from llm_pipeline.runners.stage_environment import command_environment
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import read_place
from llm_pipeline_airflow.assets import ROLLBACKS, tell_rollback
from llm_pipeline_airflow.connections import deployment_with_secrets
from llm_pipeline_airflow.faults import Refused, refused
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.notifications import tell_canary

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.config.deployment import Deployment

log = get_logger(__name__)


class FoundWrong(Refused):
    """The command worked, and what it looked at is not as it should be: trying again finds the same."""


class CommandOperator(BaseOperator):
    """Runs a command as a process of its own, relays what it says, and then tells people what it did.

    Args:
        deployment_file: The deployment's file.
        subject: The target's name.
    """

    ui_color = "#f9d9d9"

    def __init__(self, *, deployment_file: str, subject: str = "", **kwargs: Any) -> None:
        super().__init__(outlets=[ROLLBACKS], **kwargs)
        self.deployment_file = deployment_file
        self.subject = subject
        self._process: subprocess.Popen[str] | None = None
        self._last_line = ""

    def command(self, context: Context) -> Sequence[str]:
        """The command and its arguments, without the deployment; it shows in the process list.

        Raises:
            AirflowSkipException: There is nothing to do for this target.
        """
        raise NotImplementedError

    def execute(self, context: Context) -> None:
        """Run it.

        Raises:
            Refused: The command refuses what it was asked.
            FoundWrong: It found something wrong, and says what in its last line.
            StageCrashed: It failed, and may work when it is tried again.
        """
        command = self.command(context)
        deployment = deployment_with_secrets(self.deployment_file)
        store = open_store(deployment.store)
        before = _rolled_back(store, self.subject)
        arguments = ("-m", "llm_pipeline", *command, "--deployment", self.deployment_file)
        code = self._run([_python(deployment), *arguments], command_environment(deployment))
        tell_canary(deployment, self.subject)
        if _rolled_back(store, self.subject) != before:
            tell_rollback(context, deployment, store, self.subject)
        if code == ExitCode.BAD_INPUT:
            raise refused(context, f"{command[0]} {self.subject} was refused; see its log")
        if code == ExitCode.NO_GO:
            raise FoundWrong(self._last_line)
        if code:
            raise StageCrashed(f"{command[0]} {self.subject} ended with exit code {code}: see its log")

    def on_kill(self) -> None:
        """Stop the command: each of its steps is safe to be done again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _run(self, command: list[str], environment: dict[str, str]) -> int:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        ) as self._process:
            relay = LogRelay(log)
            for line in self._process.stdout or ():
                relay.relay(line)
                self._last_line = line.strip() or self._last_line
        return self._process.returncode


def _rolled_back(store: ArtifactStore, place: str) -> tuple[object, ...]:
    """What changes with each rollback at a place."""
    state, canary = read_place(store, place), latest_canary(store, place)
    ended = canary is not None and canary.phase is Phase.ROLLED_BACK
    return state.way_back, state.taken_back, (canary.release_id, canary.run) if canary is not None and ended else None


def _python(deployment: Deployment) -> str:
    """The control environment's interpreter where it is one of this host; else Airflow's own, which has the package."""
    control = deployment.environments.get("control")
    return (control.interpreter_here() if control is not None else None) or sys.executable
