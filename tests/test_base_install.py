"""The package without its extras: every command works, or says in one error which extra to install."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deployment_here import write_bare_deployment

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.store import signing

ROOT = Path(__file__).parents[1]
NOTHING = "0" * 64

# What the base dependencies do not bring, directly or not, cannot be imported after this.
_HIDING = """
import contextlib, importlib.metadata as metadata, io, json, re, sys

def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def with_dependencies(names):
    from packaging.requirements import Requirement
    found, left = set(), list(names)
    while left:
        name = normal(left.pop())
        if name in found:
            continue
        found.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):
            for requirement in map(Requirement, metadata.requires(name) or ()):
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    left.append(requirement.name)
    return found

base = with_dependencies(json.loads(sys.argv[1]))
owners = metadata.packages_distributions().items()
hidden = {top for top, names in owners if not {normal(name) for name in names} & base}
hidden -= {"llm_pipeline", "llm_pipeline_airflow"}
for module in [name for name in sys.modules if name.partition(".")[0] in hidden]:
    del sys.modules[module]

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""

# One process for all commands.
_PROGRAM = f"""{_HIDING}
from importlib import import_module

results = []
for module, arguments in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main = import_module(module).main
            code = main() if arguments is None else main(arguments)
        except SystemExit as ended:
            code = ended.code
        except ModuleNotFoundError as error:
            code, _ = None, err.write(str(error))
    results.append([code, out.getvalue(), err.getvalue()])
json.dump(results, sys.stdout)
"""

# The interpreter that stages are started with: `-P -m llm_pipeline.stages` and the rest.
_INTERPRETER = f"""#!{sys.executable}
import sys
sys.argv[1:1] = [BASE]
{_HIDING}
import runpy
name = sys.argv[4]
del sys.argv[1:5]
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""

CLI = "llm_pipeline.cli"
NEEDS_A_RELEASE = "no release or artifact"
Case = tuple[list[str] | None, int, str]
"""Arguments, the exit code, and words of the output."""

MINIMAL: dict[str, Case] = {
    "plan": (["plan", "DIR/configs/releases/demo.yaml"], 0, "plan of demo"),
    "run": (["run", "DIR/configs/releases/demo.yaml", "--reject"], 4, "pip install 'llm-pipeline[control]'"),
    "report": (["report", "x", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "push": (["push", "x", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "ls": (["ls", "-d", "DIR/here.yaml"], 0, "no releases"),
    "ls in S3": (["ls", "-d", "DIR/s3.yaml"], 4, "pip install 'llm-pipeline[store-s3]'"),
    "show": (["show", "x", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "verify": (["verify", "x", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "diff": (["diff", "x", "y", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "claims": (["claims", "-d", "DIR/here.yaml"], 0, ""),
    "approve-step": (["approve-step", "r", "cpu", "5", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "approve": (["approve", "x", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "pause": (["pause", "cpu", "-d", "DIR/here.yaml"], 4, "has no place 'cpu'"),
    "resume": (["resume", "cpu", "-d", "DIR/here.yaml"], 4, "has no place 'cpu'"),
    "guard": (["guard", "-d", "DIR/here.yaml"], 0, "nothing to do"),
    "status": (["status", "-d", "DIR/here.yaml"], 5, "deployment here, store file://"),
    "start": (["start", "-d", "DIR/here.yaml"], 4, "has 0 places"),
    "stop": (["stop", "cpu", "-d", "DIR/here.yaml"], 4, "has no place 'cpu'"),
    "rollback": (["rollback", "a/b", "cpu", "-d", "DIR/here.yaml"], 4, "has no place 'cpu'"),
    "gc": (["gc", "-d", "DIR/here.yaml"], 0, "nothing was changed"),
    "doctor": (["doctor", "-d", "DIR/here.yaml"], 4, "no tritonserver here"),
    "init": (["init", "DIR/project", "--model", "a/b"], 0, "llm-pipeline plan"),
    "render": (["render", "x", "--output", "DIR/r", "-d", "DIR/here.yaml"], 4, NEEDS_A_RELEASE),
    "pod": (["pod", "lay-out", f"k/{NOTHING}", "--store", "file://DIR/store", "--view", "DIR/v"], 5, NOTHING[:12]),
    "runbook": (["runbook", "ConfigError"], 0, "ConfigError"),
    "schema": (["schema", "targets"], 0, '"accelerator"'),
    "completion": (["completion", "bash"], 4, "pip install 'llm-pipeline[control]'"),
}
PROGRAMS: dict[str, Case] = {
    "llm_pipeline.loadtest.client.__main__": (None, 4, "pip install 'llm-pipeline[control]'"),
    "llm_pipeline.stages.__main__": (["download", "--request", "DIR/no", "--result", "DIR/it"], 4, "no such request"),
    "llm_pipeline.demo.__main__": (["down"], 4, "pip install 'llm-pipeline[control]'"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of everything, by name."""
    directory = tmp_path_factory.mktemp("base")
    write_bare_deployment(directory / "here.yaml", python=sys.executable)
    write_bare_deployment(directory / "s3.yaml", "s3://bucket/releases", python=sys.executable)
    shutil.copytree(ROOT / "configs", directory / "configs")
    local = directory / "configs/deployments/local.yaml"
    local.write_text(local.read_text().replace("127.0.0.1:18180", "127.0.0.1:9"))  # not the hub of a demo that runs
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = json.dumps([requirement.partition(">")[0] for requirement in project["dependencies"]])
    for name in ("control", "model"):
        python = directory / ".envs" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(_INTERPRETER.replace("BASE", repr(base)))
        python.chmod(0o755)
    (directory / "repository/llm/1").mkdir(parents=True)
    (directory / "repository/llm/config.pbtxt").write_text('name: "llm"\n')
    calls = {name: (CLI, arguments) for name, (arguments, _, _) in MINIMAL.items()}
    calls |= {f"{name} --help": (CLI, [*name.split()[:1], "--help"]) for name in MINIMAL}
    calls |= {name: (name, arguments) for name, (arguments, _, _) in PROGRAMS.items()}
    texts = json.dumps(list(calls.values())).replace("DIR", str(directory))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, base, texts],
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = zip(calls, json.loads(done.stdout), strict=True)
    return {name: (code, out + err) for name, (code, out, err) in found}


def test_every_command_is_in_this_test() -> None:
    from llm_pipeline.cli import _parser

    (commands,) = (action for action in _parser()._actions if action.dest == "command")
    assert {name.split()[0] for name in MINIMAL} == set(commands.choices or ())


@pytest.mark.parametrize("name", [*MINIMAL, *PROGRAMS])
def test_a_command_works_or_names_the_extra_in_one_error(results: dict[str, tuple[int, str]], name: str) -> None:
    _, code, words = {**MINIMAL, **PROGRAMS}[name]
    found, said = results[name]
    assert words in said
    assert found == code
    assert "Traceback" not in said


@pytest.mark.parametrize("name", MINIMAL)
def test_help_needs_no_extra(results: dict[str, tuple[int, str]], name: str) -> None:
    code, said = results[f"{name} --help"]
    assert code == 0
    assert said.startswith("usage: llm-pipeline")


def test_signatures_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(Unsupported, match=r"pip install 'llm-pipeline\[signing\]'"):
        signing._library()
