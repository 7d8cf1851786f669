"""Which deployment a command is about: `-d FILE`, an environment variable, or the one of a checkout."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from llm_pipeline.base.errors import ConfigError

if TYPE_CHECKING:
    from llm_pipeline.base.entry import ArgumentParser
    from llm_pipeline.config.deployment import Deployment

DEPLOYMENT_VARIABLE = "LLM_PIPELINE_DEPLOYMENT"
_CHECKOUT = Path("configs/deployments/local.yaml")

Commands: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"  # noqa: SLF001 - it has no public name


def add_deployment_option(parser: argparse.ArgumentParser) -> None:
    """Give a command the option."""
    parser.add_argument(
        "-d",
        "--deployment",
        type=Path,
        metavar="FILE",
        help=f"a deployment file (default: ${DEPLOYMENT_VARIABLE}, else {_CHECKOUT} if there is one)",
    )


def deployment_of(options: argparse.Namespace) -> Deployment:
    """The deployment that the options, or the surroundings, name.

    Raises:
        ConfigError: None is named, or its file is wrong.
    """
    from llm_pipeline.config.loading import load_deployment

    named: Path | None = options.deployment
    if named is None and (variable := os.environ.get(DEPLOYMENT_VARIABLE)):
        named = Path(variable)
    if named is None and _CHECKOUT.is_file():
        named = _CHECKOUT
    if named is None:
        raise ConfigError("no deployment is named", hint=f"give --deployment FILE, or set {DEPLOYMENT_VARIABLE}")
    return load_deployment(named)
