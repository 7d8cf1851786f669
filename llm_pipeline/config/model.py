"""The base of all configuration models, and the few constrained types they share."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints


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


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
"""A name that is safe in a file name, a task id and a metric label."""

HubId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$")]
"""`organisation/name` on the hub."""

Revision = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w./-]{0,127}$")]
"""A branch, tag or commit on the hub."""


def _is_plain_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^@\s]+", url):
        raise ValueError("must be an http or https URL without credentials")
    return url


PlainUrl = Annotated[str, AfterValidator(_is_plain_url)]
"""Where a service is; who we are to it stands in environment variables."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Percent = Annotated[float, Field(gt=0.0, le=100.0)]
Port = Annotated[int, Field(ge=1024, le=65535)]
PositiveSeconds = Annotated[float, Field(gt=0.0)]
