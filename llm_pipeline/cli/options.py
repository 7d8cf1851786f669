"""What commands have in common: the deployment that they are about, a release by its reference, and output."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llm_pipeline.base.errors import ConfigError, unless_io
from llm_pipeline.base.untrusted_text import one_line

if TYPE_CHECKING:
    from llm_pipeline.base.entry import ArgumentParser
    from llm_pipeline.config.deployment import Deployment
    from llm_pipeline.release_progress import ReleaseProgress
    from llm_pipeline.store.artifact_store import ArtifactStore


DEPLOYMENT_VARIABLE = "LLM_PIPELINE_DEPLOYMENT"
_HERE = (Path("deployments/local.yaml"), Path("configs/deployments/local.yaml"))
"""In a project of `init`, and in a clone."""

Commands: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"  # noqa: SLF001 - it has no public name


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    *,
    description: str = "",
    epilog: str | None = None,
    deployment: bool = True,
    json_too: bool = False,
) -> ArgumentParser:
    """Add a command with the options that most have.

    Args:
        commands: Where to add it.
        name: What people type.
        run: What it does; returns the exit code.
        summary: One line of the list of commands.
        description: The first lines of its own help, instead of the summary.
        epilog: The last ones.
        deployment: It is about a deployment.
        json_too: It can print JSON.
    """
    parser = commands.add_parser(name, help=summary, description=description or sentence(summary), epilog=epilog)
    parser.set_defaults(run=run)
    if deployment:
        parser.add_argument(
            "-d",
            "--deployment",
            type=Path,
            metavar="FILE",
            help=f"a deployment file (default: ${DEPLOYMENT_VARIABLE}, else {' or '.join(map(str, _HERE))})",
        )
    if json_too:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def deployment_of(options: argparse.Namespace) -> Deployment:
    """The deployment that the options, or the surroundings, name.

    Raises:
        ConfigError: None is named, or its file is wrong.
    """
    from llm_pipeline.config.deployment import Deployment
    from llm_pipeline.config.loading import load_yaml

    named: Path | None = options.deployment
    if named is None and (variable := os.environ.get(DEPLOYMENT_VARIABLE)):
        named = Path(variable)
    if named is None:
        named = next(filter(Path.is_file, _HERE), None)
    if named is None:
        hint = f"give --deployment FILE, set {DEPLOYMENT_VARIABLE}, or go to the project's directory"
        raise ConfigError("no deployment is named", hint=hint)
    return load_yaml(named, Deployment)


def opened(options: argparse.Namespace) -> tuple[Deployment, ArtifactStore]:
    """The deployment that is meant, and its store.

    Raises:
        ConfigError: As `deployment_of`.
    """
    from llm_pipeline.store import open_store

    deployment = deployment_of(options)
    return deployment, open_store(deployment.store)


def seconds(text: str) -> float:
    """The type of an option that is a wait.

    Raises:
        ArgumentTypeError: It is no such number.
    """
    with suppress(ValueError):
        if 0 <= (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")


def sentence(summary: str) -> str:
    """A summary as a sentence; names in it keep their capitals."""
    return f"{summary[:1].upper()}{summary[1:]}."


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout; no text in them makes another one, or moves the cursor."""
    for line in lines:
        sys.stdout.write(f"{one_line(line)}\n")
    sys.stdout.flush()


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write texts by their relative path into a directory, which is made.

    Raises:
        ConfigError: It is no place to write to.
        Transient: The disk is full, or fails.
    """
    with writing(directory):
        for name, content in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Tell of a directory in which nothing can be written, as `write_files` does."""
    try:
        yield
    except OSError as error:
        wrong = ConfigError(f"cannot be written: {error.strerror}", where=str(error.filename or directory))
        raise unless_io(error, wrong) from error


def write_view(view: Any, *, as_json: bool) -> None:
    """Write a record to stdout, as data or by its `lines()`, which are for people."""
    if as_json:
        write_json(view.model_dump(mode="json"))
    else:
        write_lines(view.lines())


def write_json(value: object) -> None:
    """Write JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def named_release(store: ArtifactStore, reference: str) -> str:
    """The id of the release that a reference names: its id, the beginning of it, or a pointer.

    Raises:
        ConfigError: There is none, or there are several.
    """
    from llm_pipeline.store.references import release_of, resolve_reference

    return release_of(resolve_reference(store, reference))


def open_flow(options: argparse.Namespace, reference: str) -> ReleaseProgress:
    """The release that a reference names in the options' deployment.

    Raises:
        ConfigError: There is none, or there are several.
        IntegrityError: Its record cannot be understood, or is not signed as the store requires.
    """
    from llm_pipeline.release_progress import ReleaseProgress

    deployment, store = opened(options)
    return ReleaseProgress.open(deployment, named_release(store, reference)).here(deployment)
