"""`endpoint.json` and `serve.json`, which stand in a model repository.

The first says what the process that speaks OpenAI's API needs to know of the model behind it; the second, how an
engine's own server with that API is started, where a target wants it in Triton's place.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, JsonValue

from llm_pipeline.artifacts.model_rules import ChatFormat
from llm_pipeline.artifacts.repository_layout import MODEL_NAME, MODEL_VERSION, SERVE_FILE
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen

MODEL, PORT = "{model}", "{port}"
"""Arguments that are put in at the start: what links to the checkpoint, and the port of OpenAI's API."""


class ServeCommand(Frozen):
    """The content of `serve.json`.

    Attributes:
        program: The command, which lies beside the interpreter that it is installed for.
        arguments: Its arguments, `MODEL` and `PORT` among them. Files are named from the repository on.
        environment: Variables that it needs.
        metrics_path: Where it has its Prometheus metrics, on the port of OpenAI's API.
    """

    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = Field(default={})
    metrics_path: str

    def of(self, directory: Path, *, model: str, port: int) -> list[str]:
        """The argument list, with the program from the directory of an interpreter."""
        given = {MODEL: model, PORT: str(port)}
        return [str(directory / self.program), *(given.get(argument, argument) for argument in self.arguments)]


def read_serve_command(repository: Path) -> ServeCommand | None:
    """The command of a model repository; None where Triton serves it.

    Raises:
        IntegrityError: The file is damaged.
    """
    file = repository / MODEL_NAME / str(MODEL_VERSION) / SERVE_FILE
    return load_record(ServeCommand, file, "not a server's command") if file.is_file() else None


def write_serve_command(repository: Path, command: ServeCommand) -> None:
    """Write it into a model repository."""
    file = repository / MODEL_NAME / str(MODEL_VERSION) / SERVE_FILE
    file.write_text(command.model_dump_json(indent=1) + "\n", encoding="utf-8")


class EndpointDescription(Frozen):
    """The content of `endpoint.json`.

    Attributes:
        model: The model's name at the API.
        release: What `system_fingerprint` says.
        chat: The checkpoint's chat format.
        chat_template_arguments: Handed to the template, unless a request says otherwise.
        sampling: Defaults of requests that do not say, by the names of inputs of `llm`.
        features: Optional inputs of `llm` that this engine takes, beyond those that all take.
        maximum_tokens_per_request: Of a prompt and its answer.
        maximum_sequences: Requests that the engine runs at once.
    """

    model: str
    release: str
    chat: ChatFormat = ChatFormat()
    chat_template_arguments: dict[str, JsonValue] = Field(default={})
    sampling: dict[str, int | float] = Field(default={})
    features: tuple[str, ...] = ()
    maximum_tokens_per_request: int
    maximum_sequences: int
