"""What a tritonserver needs around it: backends with the right python stub, libraries, a fitting interpreter, memory.

The server is the one inside the nvidia-pytriton wheel (Triton 2.51), or an installed one, as in NVIDIA's containers.
Its python backend runs `model.py` in a stub process that embeds the first `python3` on PATH and loads that
interpreter's shared libpython. The wheel has a stub for each Python; an installed server has one, for its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llm_pipeline.artifacts.checkpoint_directory import check_directory
from llm_pipeline.artifacts.endpoint_description import ServeCommand
from llm_pipeline.artifacts.repository_layout import CHECKPOINT_DIRECTORY, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.directory_listing import refuse_unreadable
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.offline import OFFLINE
from llm_pipeline.base.plain_environment import engine_environment
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.endpoint_access import served_name
from llm_pipeline.serving.ports import LOOPBACK

_DIRECTORY = Path("/dev/shm")  # noqa: S108 - where the kernel keeps POSIX shared memory
STUB = "triton_python_backend_stub"
_INTERPRETER_FACTS = """
import importlib.metadata, json, os, sys, sysconfig
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "library_directory": sysconfig.get_config_var("LIBDIR") or "",
    "library": (sysconfig.get_config_var("INSTSONAME") or "") if sysconfig.get_config_var("Py_ENABLE_SHARED") else "",
    "numpy": version("numpy"),
    "places": sorted({sys.prefix, sys.base_prefix, *(entry for entry in sys.path if os.path.isabs(entry))}),
}))
"""

_INHERITED = ("LANG", "LC_ALL", "TZ", "USER")  # never a token, never PYTHONPATH
_HOME, _TEMPORARY = "home", "tmp"
_OWN_SERVER_VARIABLE = "LLM_PIPELINE_OWN_SERVER"  # see `serving/models/served_model.py`
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_CUDA_HOME = "/usr/local/cuda"
_ONE_WORD = re.compile(r"[A-Za-z0-9/._+=:@%,-]+")
EXIT_SECONDS = 5
_OF_THE_CONTAINER = ("LD_LIBRARY_PATH", "OPAL_PREFIX", "PATH")


def _segment_prefix(state: Path) -> str:
    """Prefix of a server's segments, from its state directory, so that it is the same after a restart."""
    return f"llm_pipeline_{hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:16]}_"


def segments(state: Path) -> list[Path]:
    """A server's segments that exist now; a killed server leaves them behind."""
    return sorted(_DIRECTORY.glob(f"{_segment_prefix(state)}*"))


class Launch(NamedTuple):
    """A server's process: its argument list, its whole environment, and what it may read beside its own state."""

    command: list[str]
    environment: dict[str, str]
    readable: tuple[Path, ...]


class StubInterpreter(NamedTuple):
    """The Python that runs `model.py`.

    Attributes:
        python: Its executable, inside its virtual environment.
        version: `major.minor`; the stub is built per minor version.
        library_directory: Where its shared libpython lies.
        places: Its installation, and all that it imports from.
    """

    python: Path
    version: str
    library_directory: Path
    places: tuple[Path, ...]


class TritonHome(NamedTuple):
    """The directories of a tritonserver installation.

    Attributes:
        server: The tree with the server's program, backends and caches.
        libraries: The shared libraries that the wheel brings; None for an installed server.
    """

    server: Path
    libraries: Path | None

    @property
    def program(self) -> Path:
        """The executable `bin/tritonserver`."""
        return self.server / "bin" / "tritonserver"


def open_home(root: Path) -> TritonHome:
    """Find the server in a directory: an unpacked nvidia-pytriton wheel, or `/opt/tritonserver` of a container.

    Raises:
        ConfigError: There is none.
    """
    root = root.absolute()
    wheel = TritonHome(root / "pytriton" / "tritonserver", root / "nvidia_pytriton.libs")
    installed = TritonHome(root, None)
    if os.access(installed.program, os.X_OK) and (root / "backends" / "python" / STUB).is_file():
        return installed
    if not os.access(wheel.program, os.X_OK) or not (root / "nvidia_pytriton.libs").is_dir():
        raise ConfigError(
            "no tritonserver here",
            where=str(wheel.program),
            hint="unpack the wheel: pip install --no-deps --target <triton_home> nvidia-pytriton==0.7.0; "
            "in NVIDIA's containers, set triton_home to /opt/tritonserver",
        )
    return wheel


def inspect_interpreter(python: Path, home: TritonHome) -> StubInterpreter:
    """Check, before anything starts, that the stub can embed this interpreter.

    An installed server is not checked: its stub embeds the `python3` that it was built for, and not `python`.

    Raises:
        ConfigError: The interpreter is missing, does not run, or is not `python3` in its directory.
        Unsupported: It has no shared libpython, no stub is built for its version, or its numpy is 2 or newer.
    """
    if home.libraries is None:
        installed = shutil.which("python3")
        if installed is None:
            raise ConfigError("there is no python3 on PATH, and the server's python models run in it", where="PATH")
        python = Path(installed)
    python, where = python.absolute(), str(python)
    facts = _interpreter_facts(python)
    libraries = Path(facts["library_directory"] or "/nonexistent")
    found = StubInterpreter(python, facts["version"], libraries, tuple(map(Path, facts["places"])))
    if home.libraries is None:
        return found
    if not (python.parent / "python3").exists():
        raise ConfigError("its directory has no python3, which the stub looks for", where=where)
    if not facts["library"] or not (libraries / facts["library"]).exists():
        raise Unsupported(
            f"this interpreter has no shared libpython in {libraries}",
            where=where,
            hint="use a Python built with --enable-shared (Debian's, conda's, or pyenv with "
            "PYTHON_CONFIGURE_OPTS=--enable-shared)",
        )
    if not (home.server / "python_backend_stubs" / found.version / STUB).exists():
        raise Unsupported(f"this Triton has no python stub for {found.version}", where=where, hint="use 3.11")
    if facts["numpy"] is None or int(facts["numpy"].split(".")[0]) >= 2:  # noqa: PLR2004 - numpy's major version
        raise Unsupported(
            f"numpy is {facts['numpy'] or 'missing'}: Triton 2.51's stub dies at the first string request on numpy 2",
            where=where,
            hint="install numpy==1.26.4 there (fixed upstream by python_backend pull request 384)",
        )
    return found


def prepare_runtime(state: Path, home: TritonHome, interpreter: StubInterpreter) -> None:
    """Lay out a slot's `runtime`: `backends/` with the stub of the interpreter's version, and `caches/`, afresh."""
    directory = state / "runtime"
    _remove(directory)
    own_directories(state)
    if home.libraries is None:
        directory.mkdir(parents=True)
        for part in ("backends", "caches"):
            (directory / part).symlink_to(home.server / part)
        return
    for part in ("backends", "caches"):
        shutil.copytree(home.server / part, directory / part)
    python_backend = directory / "backends" / "python"
    shutil.copy2(home.server / "python_backend_stubs" / interpreter.version / STUB, python_backend / STUB)


def own_directories(state: Path) -> None:
    """Make a server's home, which it keeps, and its place for temporary files, which is emptied."""
    _remove(state / _TEMPORARY)
    for own in (state / _HOME, state / _TEMPORARY):
        own.mkdir(parents=True, exist_ok=True)


def link_repository(repository: Path, view: Path, links: Mapping[str, Path] | None = None) -> None:
    """Lay out `view` as a tree of directories whose files are links into `repository`.

    The python stub writes `__pycache__` beside `model.py`, whatever PYTHONDONTWRITEBYTECODE says; so it lands in
    the view, and the artifact stays what its digest says.

    Args:
        repository: A model repository.
        view: Directory to make, in place of what is there.
        links: Directories, and single files, from elsewhere, by their place in the repository.

    Raises:
        IntegrityError: A server that loads the repository, or what it links to, would read files beside them.
    """
    for source in (repository, *filter(Path.is_dir, (links or {}).values())):
        check_directory(source)
    _remove(view)
    for directory, _, files in os.walk(repository, onerror=refuse_unreadable):
        place = view / Path(directory).relative_to(repository)
        place.mkdir(parents=True)
        for name in files:
            (place / name).symlink_to(Path(directory) / name)
    for name, linked in (links or {}).items():
        (view / name).symlink_to(linked.absolute(), target_is_directory=True)


def _remove(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


def server_environment(home: TritonHome, interpreter: StubInterpreter, state: Path) -> dict[str, str]:
    """A Triton's whole environment: see `plain_environment_of`. It ends with the process of its model.

    An installed server also gets what its container says of libraries.
    """
    if home.libraries is None:
        places = {name: os.environ[name] for name in _OF_THE_CONTAINER if name in os.environ}
    else:
        places = {"LD_LIBRARY_PATH": f"{interpreter.library_directory}:{home.libraries}"}
    return {**plain_environment_of(interpreter.python, state), **places, _OWN_SERVER_VARIABLE: "1"}


def plain_environment_of(python: Path, state: Path) -> dict[str, str]:
    """The environment of a server with the software of an interpreter.

    Of this process's it has the user, the locale, the time zone and all about GPUs. Servers fetch and report nothing.
    What libraries keep in the home directory, such as kernels compiled for a GPU, goes below `state`.
    """
    inherited = engine_environment() | {name: os.environ[name] for name in _INHERITED if name in os.environ}
    compiler = f"{os.environ.get('CUDA_HOME', _CUDA_HOME)}/bin"  # kernels are compiled as servers start, too
    own = {
        "HOME": str(state / _HOME),
        "TMPDIR": str(state / _TEMPORARY),
        "PATH": f"{python.parent}:{_SYSTEM_PATH}:{compiler}",
    }
    return {**inherited, **own, **OFFLINE}


def _interpreter_facts(python: Path) -> dict[str, Any]:
    try:
        answer = subprocess.run(  # at the root, for it would import what lies in its working directory
            [str(python), "-c", _INTERPRETER_FACTS], cwd="/", capture_output=True, text=True, timeout=60, check=True
        )
        return dict(json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, TypeError, ValueError) as error:
        raise ConfigError(f"the model interpreter does not run: {error}", where=str(python)) from error


def prepare_triton(
    triton_home: Path, python: Path, state: Path, *, ports: ServerPorts, digest: str, models: Sequence[str]
) -> Launch:
    """Lay out what a Triton needs beside its view of the repository; what is to be started.

    Raises: As `open_home` and `inspect_interpreter`.
    """
    home = open_home(triton_home)
    interpreter = inspect_interpreter(python, home)
    prepare_runtime(state, home, interpreter)
    # The slot's directory as a shell reads it as one word, by which Triton starts the processes of its models. Relative
    # paths would do, but end those processes; the working directory, below it, is the server's and theirs.
    named = state if _ONE_WORD.fullmatch(str(state)) else Path("/proc/self/cwd/..")
    runtime = named / "runtime"
    command = [
        str(home.program),
        f"--id={served_name(digest)}",
        f"--model-repository={named / 'repository'}",
        f"--backend-directory={runtime / 'backends'}",
        f"--cache-directory={runtime / 'caches'}",
        f"--backend-config=python,shm-region-prefix-name={_segment_prefix(state)}",
        *(f"--{name}-address={LOOPBACK}" for name in ("http", "grpc", "metrics")),
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        "--strict-readiness=false",  # a failed load of one model must not make the server unready for good
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={EXIT_SECONDS}",
        "--log-format=ISO8601",
    ]
    software = (home.server, *filter(None, (home.libraries,)), interpreter.library_directory, *interpreter.places)
    return Launch(command, server_environment(home, interpreter, state), software)


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
    facts = _interpreter_facts(python)
    own_directories(state)
    (state / "repository" / served_name(digest)).symlink_to(
        Path(MODEL_NAME, str(MODEL_VERSION), CHECKPOINT_DIRECTORY), target_is_directory=True
    )
    return Launch(
        command.of(python.parent, model=served_name(digest), port=port),
        plain_environment_of(python, state) | command.environment,
        tuple(map(Path, filter(None, (facts["library_directory"], *facts["places"])))),
    )
