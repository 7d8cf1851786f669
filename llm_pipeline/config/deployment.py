"""Deployments: where things run and where they are kept. A release config says what, this says where."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, PrivateAttr, StringConstraints, ValidationInfo, field_validator, model_validator

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.environment import Environment, VariableNames
from llm_pipeline.config.files import how_to_make_an_interpreter
from llm_pipeline.config.model import (
    ConfigModel,
    ConnectionId,
    GpuIndices,
    HostPath,
    Items,
    Name,
    Owner,
    PathsRelativeTo,
    PlainUrl,
    Ranks,
    Small,
    VariableName,
    Word,
)
from llm_pipeline.config.router_place import MetricSource, RouterPlace
from llm_pipeline.config.server_place import OpenAiSlot, ServerPlace, ServerPorts, SlotServer
from llm_pipeline.config.store import Store, StoreModel

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""How much an event matters: the least first."""


class Channel(ConfigModel):
    """A service that Apprise knows: Slack, Teams, e-mail, PagerDuty and a hundred more.

    Its URLs hold secrets: they stand in a variable, never here.

    Attributes:
        variable: Environment variable with one or more of Apprise's URLs, separated by blanks, wherever releases are
            run: Airflow's workers, or the shell of `llm-pipeline run`. `airflow_connections` may name a connection
            whose password is its value.
        at_least: Severity of the least event that is sent: `warning` where a person should look, `critical` where
            production is in danger or was changed back.
    """

    variable: VariableName
    at_least: Severity = "info"


Notifications = Annotated[dict[Name, Channel], Field(max_length=64)]
"""Every channel by a name for logs."""


class TargetPlace(ConfigModel):
    """Where the servers of one target live, for one model.

    Attributes:
        staging: The server that a candidate is judged on: by its ports alone a server of this host, else by its kind.
        comparison: A second server of this host, for the version in production while a candidate is compared with it;
            None where candidates are compared with nothing.
        environment: The environment, an interpreter of this host, that the models' code in these servers runs in. An
            engine that is a Python package, such as vLLM, must be installed there.
        blue: One production slot: ports of this host for a Triton, or a server with OpenAI's API that runs already.
        green: The other production slot, of the same kind; the roles of the two flip at each promotion.
        router: What splits the users' traffic between both slots: by its ports alone an Envoy of this host, else by its
            kind.
        metrics: Where the counts of a canary come from; None for the router's own record of requests, which only an
            Envoy keeps.
    """

    staging: ServerPlace
    comparison: ServerPorts | None = None
    environment: Name = "model"
    blue: SlotServer
    green: SlotServer
    router: RouterPlace
    metrics: MetricSource | None = None

    @model_validator(mode="after")
    def _slots_are_alike(self) -> TargetPlace:
        blue, green = self.blue, self.green
        if isinstance(blue, OpenAiSlot) != isinstance(green, OpenAiSlot):
            raise ValueError("blue and green must both be ports of this host, or both of kind: openai")
        if isinstance(blue, OpenAiSlot) and isinstance(green, OpenAiSlot):
            if blue.address == green.address:
                raise ValueError("blue and green must be two servers")
            if blue.endpoint.openai_model != green.endpoint.openai_model:
                raise ValueError("users name the model: both slots must serve it under one openai_model")
        return self

    @property
    def slots(self) -> dict[Literal["blue", "green"], SlotServer]:
        """The servers of both slots."""
        return {"blue": self.blue, "green": self.green}

    def servers_here(self) -> dict[str, ServerPorts]:
        """The servers that take ports of this host, by name."""
        servers = {"staging": self.staging, "comparison": self.comparison, "blue": self.blue, "green": self.green}
        return {name: server for name, server in servers.items() if isinstance(server, ServerPorts)}

    def ports(self) -> list[int]:
        """Every port of this place."""
        servers = self.servers_here().values()
        return [p for s in servers for p in s.by_name().values()] + list(self.router.ports_here())


class QuantizationHost(ConfigModel):
    """The GPUs that quantization and scoring run on, for what `plan` predicts.

    Attributes:
        accelerator: A GPU's name in the GPU catalog.
        count: How many of them one quantization may use.
        gpus: Indices of the host's GPUs that quantization and scoring see; None for all that the worker does. A build
            sees those of its place's staging server.
    """

    accelerator: Word
    count: Ranks = 1
    gpus: GpuIndices | None = None


AirflowName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}$", max_length=250)]
"""Name of a queue or of a pool."""

Price = Annotated[float, Field(ge=0.000_001, le=1_000_000.0)]


class WorkerGroup(ConfigModel):
    """The Airflow workers of one host.

    Attributes:
        queue: The queue that only they listen to (`airflow celery worker --queues ...`); None for the default one.
        pool: The pool whose slots are the host's GPUs; None for the default one. It must exist
            (`airflow pools set ... --include-deferred`): Airflow never starts a task of a pool that does not.
    """

    queue: AirflowName | None = None
    pool: AirflowName | None = None


class Workers(ConfigModel):
    """Which Airflow workers run what, where not every one of them is on every host.

    Attributes:
        quantization: For baseline, quantization and accuracy; they take as many slots as `quantization_host` has GPUs.
        targets: For everything that is done target by target, by the name of its place: the servers are on that
            host. Build, staging, served accuracy and load test take as many slots as an engine has GPUs.
    """

    quantization: WorkerGroup = WorkerGroup()
    targets: Annotated[dict[Name, WorkerGroup], Field(max_length=256)] = Field(default={})


class HubAccess(ConfigModel):
    """The hub that models are read from.

    Attributes:
        endpoint: URL of the hub; None for the public one (or `HF_ENDPOINT`).
        token_variable: Environment variable that holds the access token; the token itself is never configured.
    """

    endpoint: PlainUrl | None = None
    token_variable: VariableName = "HF_TOKEN"  # noqa: S105 - the name of a variable, not a token


class Retention(ConfigModel):
    """What `llm-pipeline gc` keeps besides production, the release before it, and everything still on its way.

    Attributes:
        keep_releases: The newest releases of each release config.
        keep_days: Nothing that was used in so many days is removed: no release, artifact, or fetched data set.
        schedule: Cron expression of the retention DAG; None for runs by hand only.
        delete: Whether scheduled runs delete; otherwise they only report what they would delete.
    """

    keep_releases: Items = 5
    keep_days: Annotated[float, Field(ge=1.0, le=36_500.0)] = 30.0
    schedule: Word | None = None
    delete: bool = False


class Deployment(ConfigModel):
    """One place to run releases. The directories of work, store and state are three, and none lies in another.

    Attributes:
        work_root: Directory for stages' private work and job records.
        store: The artifact store: its URI (or a path), or the fields below.
        state_root: Directory for running servers: their pids, logs and configuration. No other deployment's.
        environments: Where stages start, by environment name: a path is an interpreter of this host.
        triton_home: Directory that holds the unpacked nvidia-pytriton wheel (its tritonserver is used).
        quantization_host: What quantization and scoring run on; None for this machine, whatever it has.
        gpu_hour_prices: Price of one hour of one GPU, by its name in the GPU catalog, for what `plan` predicts; `cpu`
            is that of a machine without one, for a choice by cost.
        currency: What prices are in, as three letters.
        places: Servers by name of the place: a target's own name, unless a release config names another (`places`).
            Each place serves one model.
        workers: Airflow's queues and pools; by default any worker runs anything.
        computing_at_once: Mapped tasks of one kind (quantize, accuracy, build) that a run has going at a time;
            None leaves it to Airflow's pools and parallelism.
        retention: What the retention keeps.
        guard_schedule: Cron expression (UTC) of the guard, which looks for canaries without a controller; None for runs
            by hand only. If it did not run for 15 minutes, a canary that waits for a person is rolled back when its
            run ends.
        verification_schedule: Cron expression (UTC) of the DAG that verifies what serves: every byte of it against its
            manifest, the servers' answers, the router; None for runs by hand only.
        owner: Who answers for the deployment's DAGs, in Airflow's lists.
        notifications: Who is told of what happens to releases: channels by names of yours. Secrets never stand here.
        mlflow_experiment: Experiment of MLflow that keeps each release as a run, on the server that
            `MLFLOW_TRACKING_URI` names in the environment of whoever runs releases; None for no such run.
        airflow_connections: Airflow connections that hold secrets, by the environment variable that hands each on to
            what Airflow runs: the connection's password, but for `AWS_ACCESS_KEY_ID`, which is its login. Such a
            variable must not be set for Airflow's processes as well.
        variables: Names of further environment variables that stages and commands on this host are handed on. They get
            those of the system, of Python, GPUs and proxies, and the secrets that each of them needs; nothing else.
    """

    name: Name
    work_root: HostPath
    store: Store
    state_root: HostPath
    hub: HubAccess = HubAccess()
    environments: Annotated[dict[Name, Environment], Field(max_length=256)]
    triton_home: HostPath
    quantization_host: QuantizationHost | None = None
    gpu_hour_prices: Annotated[dict[Word, Price], Field(max_length=256)] = Field(default={})
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$", max_length=3)
    places: Annotated[dict[Name, TargetPlace], Field(max_length=256)] = Field(default={})
    workers: Workers = Workers()
    computing_at_once: Small | None = None
    retention: Retention = Retention()
    guard_schedule: Word | None = "* * * * *"
    verification_schedule: Word | None = "17 3 * * *"
    owner: Owner = "llm-pipeline"
    notifications: Notifications = Field(default={})
    mlflow_experiment: Word | None = None
    airflow_connections: Annotated[dict[VariableName, ConnectionId], Field(max_length=256)] = Field(default={})
    variables: VariableNames = ()
    _path_variables: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def path_variables(self) -> frozenset[str]:
        """The environment variables in the paths of its file: whoever reads that file needs them."""
        return self._path_variables

    @model_validator(mode="after")
    def _note_path_variables(self, info: ValidationInfo) -> Deployment:
        if isinstance(info.context, PathsRelativeTo):
            self._path_variables = frozenset(info.context.variables)
        return self

    @field_validator("store")
    @classmethod
    def _has_a_cache(cls, store: StoreModel, info: ValidationInfo) -> StoreModel:
        work_root = info.data.get("work_root", "")
        cache = None if store.directory else store.cache or f"{work_root}/cache"
        return store.model_copy(update={"cache": cache})

    @field_validator("places")
    @classmethod
    def _ports_are_distinct(cls, places: dict[Name, TargetPlace]) -> dict[Name, TargetPlace]:
        ports = [port for place in places.values() for port in place.ports()]
        if twice := sorted({port for port in ports if ports.count(port) > 1}):
            raise ValueError(f"ports {twice} are used twice")
        return places

    @field_validator("workers")
    @classmethod
    def _targets_have_places(cls, workers: Workers, info: ValidationInfo) -> Workers:
        if unknown := sorted(workers.targets.keys() - info.data.get("places", workers.targets).keys()):
            raise ValueError(f"targets {', '.join(unknown)} have no place")
        return workers

    def interpreter(self, name: str) -> str:
        """The interpreter of an environment on this host.

        Raises:
            ConfigError: There is no such environment, or it is a container or a pod.
        """
        environment = self.environments.get(name)
        if environment is not None and (python := environment.interpreter_here()):
            return python
        problem = f"is a {environment.runner} environment" if environment else "is missing"
        raise ConfigError(
            f"environment {name!r} {problem}, and an interpreter of this host is needed",
            where=f"deployment {self.name}",
            hint=how_to_make_an_interpreter(),
        )
