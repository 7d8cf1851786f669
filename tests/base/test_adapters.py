"""Adapters of another package, one of each group: installed by pip, found by entry points, and used.

Nothing of ours changes for them: `tests/doubles/acme_adapters` is the whole package.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from free_ports import server_ports
from pydantic import BaseModel, ValidationError

from llm_pipeline.artifacts.items import ScoredItem, write_items
from llm_pipeline.base import adapters
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.metrics import open_source
from llm_pipeline.canary.router import all_to, open_router, router_as_it_is
from llm_pipeline.cli import main
from llm_pipeline.config.deployment import Deployment, TargetPlace
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.target import Target
from llm_pipeline.operations.doctor import examine
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.planning.release_checks import problems_of
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.runners.runner import Placement, Runners
from llm_pipeline.serving.control import Candidate, StagingSlot, open_control
from llm_pipeline.store import open_store

PACKAGE = Path(__file__).parents[1] / "doubles" / "acme_adapters"
ROOT = Path(__file__).parents[2]
GROUPS = ["engines", "routers", "metric_sources", "server_controls", "runners", "stores"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that the package was installed into; pip builds from a copy, so that nothing is left in the tree."""
    target = tmp_path_factory.mktemp("site")
    copy = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("acme") / "copy", ignore=shutil.ignore_patterns("*.pyc"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(copy)], check=True)
    yield target
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_adapters"]:
        del sys.modules[name]


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, in this process and in those that it starts."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT}")
    adapters._installed.cache_clear()
    yield
    adapters._installed.cache_clear()


def ports(first: int) -> dict[str, int]:
    return {"http": first, "grpc": first + 1, "metrics": first + 2, "openai": first + 3}


def place(tmp_path: Path, **changes: Any) -> TargetPlace:
    written = {
        "staging": ports(18000),
        "blue": ports(18010),
        "green": ports(18020),
        "router": {"kind": "acme", "file": str(tmp_path / "routes.json")},
        "metrics": {"kind": "acme_counts", "file": str(tmp_path / "counts.json")},
    }
    return TargetPlace.model_validate({**written, **changes})


def document(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A deployment of nothing but Acme's parts, but for the metrics and the router of `place`."""
    batch = {"runner": "acme_batch", "python": sys.executable, "partition": "night"}
    return {
        "store": {"uri": "acme://shelf-7", "shelf": str(tmp_path / "shelf"), "full": True},
        "work_root": str(tmp_path / "work"),
        "state_root": str(tmp_path / "state"),
        "environments": {"control": batch, "model": batch},
        "triton_home": str(tmp_path),
        "hub": {"endpoint": "http://127.0.0.1:9"},
        **changes,
    }


def deployment(tmp_path: Path, **changes: Any) -> Deployment:
    return Deployment.model_validate({"name": "here", **document(tmp_path, **changes)})


@pytest.mark.usefixtures("installed")
def test_an_installed_router_and_source_are_used_by_their_kinds(tmp_path: Path) -> None:
    served = place(tmp_path)
    (tmp_path / "counts.json").write_text(json.dumps({"blue": {"requests": 7}, "green": {"requests": 3, "errors": 1}}))
    initial = all_to("blue", owner="test", epoch=1)

    router = open_router(served.router, {}, tmp_path, initial=initial)
    revision = router.write(initial, None)

    assert router.converged(revision)
    assert router_as_it_is(served.router, {}, tmp_path).read() == (initial, revision)
    source = open_source(served.metrics, served.router, router)
    arms, _ = source.window(source.begin())
    assert (arms["blue"].requests, arms["green"].errors) == (7, 1)
    router.name_release("blue", "r1")  # what it cannot do is left out
    with pytest.raises(Unsupported, match="no record of single requests"):
        router.access_log()


@pytest.mark.usefixtures("installed")
def test_an_installed_runner_builds_an_installed_engine_into_an_installed_store(tmp_path: Path) -> None:
    where = deployment(tmp_path)
    store = open_store(where.store)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "evaluation").mkdir()
    item = ScoredItem(
        task="t", item_id=0, fingerprint="0", score=1.0, generative=True, prompt="1+1=", completion=" 2"
    )  # fmt: skip
    write_items(tmp_path / "evaluation", [item])
    inputs = {kind: store.publish(kind, tmp_path / kind) for kind in ("checkpoint", "evaluation")}
    target = {"name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "acme_copy",
              "engine_options": {"repeats": 3}}  # fmt: skip
    request = StageRequest(
        release_id="r1", stage="build", subject="cpu", config={"target": target}, store=where.store,
        inputs=inputs, work_root=where.work_root,
    )  # fmt: skip

    runner = Runners(where)
    job = runner.submit(request, Placement(environment="model"))

    assert (job.runner, job.log_place.partition("/")[0]) == ("acme_batch", "acme log night")
    built = runner.outcome(job)
    assert built.metrics["repeats"] == 3
    assert built.tools["acme-adapters"] == "1.0"
    assert "building" in "\n".join(runner.read_log(job, 0)[0])
    assert (tmp_path / "shelf" / "artifacts" / "engine" / built.artifacts["engine"].digest).is_dir()

    packaged = package(request, target, built.artifacts["engine"])
    repository = store.fetch(packaged.artifacts["repository"])
    assert (repository / "llm" / "1" / "engine" / "config.json").is_file()
    assert json.loads((repository / "release.json").read_text())["runtime_version"] == "1.0"


def package(built: StageRequest, target: dict[str, Any], engine: ArtifactRef) -> StageResult:
    pytest.importorskip("tritonclient")
    config = {"target": target, "maximum_tokens": 6, "model": "organisation/name"}
    inputs = {"engine": engine, "evaluation": built.inputs["evaluation"]}
    changes = {"stage": "package", "config": config, "inputs": inputs}
    result = execute(StageRequest.model_validate({**built.model_dump(), **changes}))
    assert isinstance(result, StageResult), result
    return result


@pytest.mark.usefixtures("installed")
def test_an_installed_server_control_starts_and_stops_a_server(tmp_path: Path) -> None:
    numbers = server_ports().by_name()
    served = place(tmp_path, staging={"kind": "acme_server", **numbers})
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="acme_copy")
    slot = StagingSlot(state=tmp_path / "state", release_name="tiny", target=target)
    (tmp_path / "repository").mkdir()

    control = open_control(served.staging, slot)
    started = control.start(Candidate(tmp_path / "repository", "d" * 64), wait_seconds=30)
    try:
        assert started.endpoint.url == f"http://127.0.0.1:{numbers['openai']}"
        assert open_control(served.staging, slot).find().digest == "d" * 64
        assert sorted(served.servers_here()) == ["blue", "green", "staging"]
    finally:
        control.stop()
    assert open_control(served.staging, slot).find() is None


@pytest.mark.usefixtures("installed")
def test_an_installed_store_holds_documents(tmp_path: Path, capsys) -> None:
    where = deployment(tmp_path)
    assert where.store.model_dump(mode="json", exclude_none=True) == {
        "uri": "acme://shelf-7", "cache": f"{tmp_path}/work/cache", "shelf": f"{tmp_path}/shelf", "full": True,
    }  # fmt: skip
    assert Deployment.model_validate_json(where.model_dump_json()).store == where.store
    open_store(where.store).write_document("a/b.json", {"kept": True}, None)
    assert open_store(where.store).read_document("a/b.json").value == {"kept": True}

    path = tmp_path / "here.yaml"
    path.write_text(yaml.safe_dump(document(tmp_path)))
    assert main(["ls", "--deployment", str(path), "--json"]) == 0
    capsys.readouterr()


def configs(tmp_path: Path, *recipes: str, **deployed: Any) -> Path:
    """The committed configs, whose demo is deployed and built by Acme's parts; returns the release config."""
    root = Path(shutil.copytree(ROOT / "configs", tmp_path / "configs"))
    served = place(tmp_path, staging={"kind": "acme_server", "slow": True, **ports(18000)}).model_dump(mode="json")
    written = document(tmp_path, places={"cpu": served}, **deployed)
    (root / "deployments" / "local.yaml").write_text(yaml.safe_dump(written))
    for file, changes in (
        ("releases/demo.yaml", {"recipes": list(recipes)}),
        ("targets/cpu.yaml", {"engine": "acme_copy", "engine_options": {"repeats": 2}}),
    ):
        (root / file).write_text(yaml.safe_dump({**yaml.safe_load((root / file).read_text()), **changes}))
    return root / "releases" / "demo.yaml"


@pytest.mark.usefixtures("installed")
def test_plan_says_what_they_warn_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    plan = plan_release(configs(tmp_path, "none"), store_seconds=0)
    told = "\n".join(plan.warnings)
    for warning in (
        "store: acme://shelf-7 is nearly full",
        "environments.model: partition night starts after dark",
        "places.cpu.staging: acme_server is slow for cpu",
        "none on cpu: acme_copy says everything 2 times on cpu",
        "cpu: the operator of its acme router has to refuse users everything but inference",
    ):
        assert warning in told


@pytest.mark.usefixtures("installed")
def test_plan_refuses_what_they_cannot_do(tmp_path: Path) -> None:
    policy = CanaryPolicy(steps_percent=(2.5, 50.0, 100.0))
    problems = list(problems_of(place(tmp_path), policy))
    assert "router acme splits by 1 %, and steps_percent has 2.5" in problems
    assert "router acme needs at least 5 % for a step" in problems
    closed = {"runner": "acme_batch", "python": sys.executable, "partition": "closed"}
    deployed = {"environments": {"control": closed, "model": closed}}
    with pytest.raises(ConfigError) as raised:
        plan_release(configs(tmp_path, "none", **deployed), store_seconds=0)
    assert raised.value.message == (
        "environments.control: partition closed takes no jobs\nenvironments.model: partition closed takes no jobs"
    )


@pytest.mark.usefixtures("installed")
def test_plan_refuses_a_recipe_that_an_installed_engine_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="fp8 on target cpu: acme_copy serves plain weights, and fp8 has fp8"):
        plan_release(configs(tmp_path, "fp8", "none"), store_seconds=0)


@pytest.mark.usefixtures("installed")
def test_doctor_has_their_probes(tmp_path: Path) -> None:
    where = deployment(tmp_path, places={"cpu": place(tmp_path, staging={"kind": "acme_server", **ports(18000)})})
    options = {"engine": "acme_copy", "engine_options": {"repeats": 2}}
    target = Target.model_validate({"name": "cpu", "accelerator": "cpu", "accelerator_count": 0, **options})
    checks = {check.subject: check for check in examine(where, [target])}
    for subject, detail in {
        "environment control": "partition night takes jobs",
        "store's address": f"shelf {tmp_path}/shelf is there",
        "store": "acme://shelf-7: written and removed",
        "staging of cpu": "port 18000 is kept for acme's server",
        "engine of cpu": "acme_copy repeats 2 times",
    }.items():
        assert (checks[subject].state, checks[subject].detail) == ("ok", detail)
    assert checks["router of cpu"].state == "failed"  # its file of routes is not there yet


@pytest.mark.usefixtures("installed")
def test_a_wrong_setting_of_theirs_is_refused_as_ours_are(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        place(tmp_path, router={"kind": "acme", "file": "/routes.json", "fil": "/x"})
    with pytest.raises(ValidationError, match="shelf\n  Field required"):
        deployment(tmp_path, store="acme://shelf-7")
    with pytest.raises(ValidationError, match="region\n  Extra inputs"):
        deployment(tmp_path, store={"uri": "acme://shelf-7", "shelf": "/shelf", "region": "eu-west-1"})
    target = {"name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "acme_copy"}
    with pytest.raises(ValidationError, match="less than or equal to 9"):
        Target.model_validate({**target, "engine_options": {"repeats": 10}})


@pytest.mark.parametrize(
    ("model", "written", "told"),
    [
        (Target, {"engine": "acme_copy"}, "no engine of kind 'acme_copy' is installed; kinds are: openvino_cpu, "),
        (Deployment, {"store": "acme://shelf"}, "no store of kind 'acme' is installed; kinds are: file, s3;"),
        (Deployment, {"environments": {"x": {"runner": "acme"}}}, "no runner of kind 'acme' is installed; kinds are: "),
        (TargetPlace, {"staging": {"kind": "acme"}}, "no server control of kind 'acme' is installed; kinds are: local"),
        (TargetPlace, {"router": {"kind": "acme"}}, "no router of kind 'acme' is installed; kinds are: envoy, "),
        (TargetPlace, {"metrics": {"kind": "acme"}}, "no metric source of kind 'acme' is installed; kinds are"),
    ],
)
def test_a_kind_that_nobody_has_is_refused_with_those_that_there_are(
    model: type[BaseModel], written: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(written)
    assert told in str(raised.value)
    assert "packages add theirs by entry points llm_pipeline." in str(raised.value)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"file": "/routes.json"}, "Field required"),
        ({"kind": 5}, "router\n  Value error, kind must say which of them it is: envoy, gateway_api"),
        (["envoy"], "router\n  Value error, kind must say which of them it is"),
    ],
)
def test_settings_without_a_kind_that_can_be_read_are_refused(written: Any, told: str) -> None:
    with pytest.raises(ValidationError) as raised:
        TargetPlace.model_validate({"router": written})
    assert told in str(raised.value)


@pytest.mark.parametrize("group", GROUPS)
def test_every_adapter_of_ours_is_where_the_table_says(group: adapters.Group) -> None:
    for kind in adapters.kinds(group):
        found = adapters.adapter(group, kind)
        assert isinstance(found, adapters.Adapter)
        assert issubclass(found.config, BaseModel)
        for called in vars(found).values():
            assert not isinstance(called, adapters.OnCall) or callable(called.imported())
