"""Commands of serving pods, which the rendered Kubernetes manifests call: `pod lay-out`, `pod await`."""

from __future__ import annotations

import argparse
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.deployment_option import Commands


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    pod = commands.add_parser("pod", help="what serving pods do before their server starts (for the manifests)")
    steps = pod.add_subparsers(dest="step", required=True, metavar="STEP")

    laying_out = steps.add_parser("lay-out", help="make a server's view of a model repository, verified")
    laying_out.add_argument("repository", metavar="KIND/DIGEST", help="the repository artifact")
    laying_out.add_argument("--store", required=True, help="the store's URI, or its configuration as JSON")
    laying_out.add_argument("--view", type=Path, required=True, metavar="DIR", help="directory to make")
    laying_out.set_defaults(run=_lay_out)

    awaiting = steps.add_parser("await", help="wait until other pods listen")
    awaiting.add_argument("addresses", nargs="+", metavar="HOST:PORT")
    awaiting.add_argument("--minutes", type=float, default=30.0, help="longest wait")
    awaiting.set_defaults(run=_await)


def _lay_out(options: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from llm_pipeline.base.records import ArtifactRef
    from llm_pipeline.config.store import StoreConfig
    from llm_pipeline.serving.pod_setup import lay_out_view
    from llm_pipeline.store import open_store

    kind, _, digest = options.repository.partition("/")
    try:
        written = options.store.startswith("{")
        store = StoreConfig.model_validate_json(options.store) if written else StoreConfig.model_validate(options.store)
    except ValidationError as error:
        raise ConfigError(f"not a store: {error}", where="--store") from error
    lay_out_view(open_store(store), ArtifactRef(kind=kind, digest=digest), options.view)
    return ExitCode.GO


def _await(options: argparse.Namespace) -> int:
    from llm_pipeline.serving.pod_setup import await_listeners

    await_listeners(options.addresses, 60 * options.minutes)
    return ExitCode.GO
