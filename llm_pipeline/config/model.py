"""The base of all configuration models, and the constrained types they share.

Every number has a range and every text and collection a largest length: beyond them a value is a slip of the pen, and
would overflow, or never end, somewhere far from the file that has it. `tests/config/test_bounds.py` finds a field
without bounds.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo


class ConfigModel(BaseModel):
    """Frozen; an unknown key is an error, never ignored. What was given is in no error: it may be a secret."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,  # a process uses few of the models, and building all is a third of a stage's start
    )


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$", max_length=63)]
"""A name that is safe in a file name, a task id and a metric label."""

_HUB_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"  # `\w` would be all alphabets: 0.1 s to compile

HubId = Annotated[str, StringConstraints(pattern=rf"^{_HUB_NAME}/{_HUB_NAME}$", max_length=193)]
"""`organisation/name` on the hub."""

DIRECTORY_OR_BUCKET = r"file:///[^?#]+|s3://[a-z0-9][a-z0-9.-]{2,62}/[^?#]+"
"""Pattern of the places of models that are no hub."""

CheckpointSource = Annotated[
    str, StringConstraints(pattern=rf"^({_HUB_NAME}/{_HUB_NAME}|{DIRECTORY_OR_BUCKET})$", max_length=4096)
]
"""`organisation/name` on the hub, a directory (`file:///absolute/path`) or an S3 prefix (`s3://bucket/prefix`)."""

DataSetName = Annotated[str, StringConstraints(pattern=rf"^{_HUB_NAME}(/{_HUB_NAME})?$", max_length=193)]
"""A data set as task files name it: `organisation/name`, or a name alone for some of the oldest."""

Revision = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w./-]*$", max_length=128)]
"""A branch, tag or commit on the hub."""

VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
"""Name of an environment variable."""

ConnectionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,250}$", max_length=250)]
"""Name of an Airflow connection."""

Word = Annotated[str, StringConstraints(max_length=256)]
"""A name in the words of another system: a label, an image, a region, a task, a pattern of module names."""

Owner = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@ -]{0,99}$", max_length=100)]
"""Who answers for something, in Airflow's lists: a team or a person. A comma would make two of it."""

Line = Annotated[str, StringConstraints(max_length=2048)]
"""A line of text: a description, an expression."""

PathText = Annotated[str, StringConstraints(max_length=4096)]
"""A path that is taken as it is: in a container, a pod or another host, or relative to `configs/`."""

Names = Annotated[tuple[Name, ...], Field(max_length=256)]
Words = Annotated[tuple[Word, ...], Field(max_length=1024)]
Labels = Annotated[dict[Word, Word], Field(max_length=256)]
"""Labels or selectors in Kubernetes' words."""


def _is_plain_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^@\s]+", url):
        raise ValueError("must be an http or https URL without credentials")
    return url


PlainUrl = Annotated[str, Field(max_length=2048), AfterValidator(_is_plain_url)]
"""Where a service is; who we are to it stands in environment variables."""

_CRON_FIELDS = (
    "[0-5]?[0-9]",
    "[01]?[0-9]|2[0-3]",
    "0?[1-9]|[12][0-9]|3[01]|L",
    "0?[1-9]|1[0-2]|[A-Z]{3}",
    "[0-7]|[A-Z]{3}",
)
_CRON_PARTS = [rf"([*?]|({number})(-({number}))?(#[1-5])?)(/\d+)?" for number in _CRON_FIELDS]
_CRON = " +".join(f"{part}(,{part})*" for part in _CRON_PARTS) + "|@(hourly|daily|weekly|monthly|quarterly|yearly)"


def _is_cron(text: str) -> str:
    if not re.fullmatch(_CRON, text, re.IGNORECASE):
        fields = "minute, hour, day of the month, month, day of the week"
        raise ValueError(f"must be a cron expression of five fields ({fields}), or a word like @daily")
    return text


Cron = Annotated[str, Field(max_length=256), AfterValidator(_is_cron)]
"""When Airflow starts something, in UTC. Airflow reads the rest of it (a 31st of February) when it makes the DAG."""


@dataclass(frozen=True)
class PathsRelativeTo:
    """Context of a validation: paths of this host are expanded, and relative to this directory.

    Without it they are taken as they are: a stage's request and a record have them absolute already.

    Attributes:
        directory: The file's.
        variables: The environment variables that were used so far.
    """

    directory: Path
    variables: set[str] = field(default_factory=set)


def host_path(text: str, info: ValidationInfo) -> str:
    """The absolute path of a path as it is written, when a file is loaded: `PathsRelativeTo` is the context.

    `$NAME` and `${NAME}` are environment variables, `$$` is a dollar sign, and `~/` at the beginning is the home
    directory.

    Raises:
        ValueError: A variable is not set, or is empty; or `$` or `~` stand where they mean nothing.
    """
    if not isinstance(info.context, PathsRelativeTo):
        return text
    given = Template(_without_home(text))
    info.context.variables.update(given.get_identifiers())
    try:
        expanded = given.substitute({name: value for name, value in os.environ.items() if value})
    except KeyError as missing:
        raise ValueError(f"the environment variable {missing.args[0]} is not set here, or is empty") from missing
    except ValueError as error:
        raise ValueError("a $ must be followed by the name of a variable; write $$ for a dollar sign") from error
    return os.path.abspath(info.context.directory / expanded)  # noqa: PTH100 - a virtual environment's python stays a link


def _without_home(text: str) -> str:
    if not text.startswith("~"):
        return text
    if text != "~" and not text.startswith("~/"):
        raise ValueError("only ~/ is expanded, to the home directory: write other paths in full")
    return str(Path.home()).replace("$", "$$") + text[1:]


HostPath = Annotated[PathText, Field(json_schema_extra={"format": "path"}), AfterValidator(host_path)]
"""A path of this host: relative to the file that has it; `$NAME`, `${NAME}` and `~/` are expanded, `$$` is a `$`."""

AbsolutePath = Annotated[
    PathText, Field(pattern=r"^/.+", json_schema_extra={"format": "path"}), AfterValidator(host_path)
]
"""A path of this host that is written in full, but for its variables."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Confidence = Annotated[float, Field(ge=0.5, le=0.999_999)]
Alpha = Annotated[float, Field(ge=1e-9, lt=0.5)]
"""Chance of a false alarm."""

Percent = Annotated[float, Field(ge=0.01, le=100.0)]
"""Down to a basis point, which is what routers can do at best."""

Ratio = Annotated[float, Field(ge=1.0, le=1000.0)]
RatioAboveOne = Annotated[float, Field(ge=1.0001, le=1000.0)]

PositiveSeconds = Annotated[float, Field(ge=0.001, le=2_592_000.0)]
"""Up to 30 days."""

Seconds = Annotated[float, Field(ge=0.0, le=2_592_000.0)]
"""None, or up to 30 days."""

PositiveMinutes = Annotated[float, Field(ge=0.0001, le=43_200.0)]
"""Up to 30 days."""

Minutes = Annotated[float, Field(ge=0.0, le=43_200.0)]
Hours = Annotated[float, Field(ge=0.0, le=8_760.0)]
"""None, or up to a year."""

PositiveHours = Annotated[float, Field(ge=0.0001, le=8_760.0)]
PositiveMilliseconds = Annotated[float, Field(ge=0.001, le=86_400_000.0)]
"""Up to a day."""

Rate = Annotated[float, Field(ge=0.0001, le=100_000.0)]
"""Requests in a second."""

PositiveGib = Annotated[float, Field(ge=0.001, le=65_536.0)]
Cores = Annotated[float, Field(ge=0.001, le=65_536.0)]
Port = Annotated[int, Field(ge=1024, le=65535)]
AnyPort = Annotated[int, Field(ge=1, le=65535)]
Tokens = Annotated[int, Field(ge=1, le=16_777_216)]
Items = Annotated[int, Field(ge=1, le=10_000_000)]
"""Documents, prompts, requests or samples."""

BatchSize = Annotated[int, Field(ge=1, le=65_536)]
"""Sequences or requests that are worked on at a time."""

Queue = Annotated[int, Field(ge=0, le=10_000_000)]
"""Requests that may wait."""

Ranks = Annotated[int, Field(ge=1, le=4096)]
"""GPUs, or processes with one each, that work together."""

Gpus = Annotated[int, Field(ge=0, le=4096)]
GpuIndices = Annotated[tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(max_length=1024)]
"""GPUs of a host, by their indices."""

Instances = Annotated[int, Field(ge=1, le=1024)]
"""Copies of a server or of a model in it."""

Small = Annotated[int, Field(ge=1, le=1000)]
"""A count that is never large: looks, rounds, failures in a row."""

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]

ParameterValue = Line | Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | bool
"""The value of a tool's own option."""
