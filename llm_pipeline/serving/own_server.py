"""An engine's own server with OpenAI's API in Triton's place: one process on the port of that API, and no endpoint.

`triton_server` starts it, finds it and stops it as it does a Triton, wherever a repository has a `serve.json`.
"""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.artifacts.endpoint_description import ServeCommand
from llm_pipeline.artifacts.repository_layout import CHECKPOINT_DIRECTORY, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.serving.endpoint_access import served_name
from llm_pipeline.serving.triton_runtime import Launch, interpreter_reads, own_directories, plain_environment_of


def prepare_own_server(command: ServeCommand, python: Path, state: Path, *, port: int, digest: str) -> Launch:
    """Lay out what the server needs beside its view of the repository; what is to be started.

    Its model is a link with the repository's name: so the API says which repository it is, as our own endpoint does.

    Raises:
        ConfigError: The command is not there, or the interpreter does not run.
    """
    python = python.absolute()
    program = python.parent / command.program
    if not program.is_file():
        raise ConfigError(
            f"there is no command {command.program}, which is to serve the release",
            where=str(program),
            hint="install it in the environment of the place, or set server: triton in the target",
        )
    own_directories(state)
    (state / "repository" / served_name(digest)).symlink_to(
        Path(MODEL_NAME, str(MODEL_VERSION), CHECKPOINT_DIRECTORY), target_is_directory=True
    )
    return Launch(
        command.of(python.parent, model=served_name(digest), port=port),
        plain_environment_of(python, state) | command.environment,
        interpreter_reads(python),
    )
