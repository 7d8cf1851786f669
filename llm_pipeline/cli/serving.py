"""Commands for what serves models: Kubernetes manifests and their pods."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.options import Commands, add_command, deployment_of, open_flow, write_files

if TYPE_CHECKING:
    from llm_pipeline.config.kubernetes_serving import ServingManifestOptions


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    summary = "render a packaged release's launch plan and Kubernetes manifests"
    rendering = add_command(commands, "render", _render, summary)
    rendering.add_argument("release", metavar="RELEASE", help="a release (or the beginning of its id), or a pointer")
    rendering.add_argument("--target", dest="gpu_target", metavar="TARGET", help="needed if the release has several")
    rendering.add_argument("--output", type=Path, required=True, metavar="DIR", help="directory to write into")
    rendering.add_argument("--options", type=Path, metavar="FILE", help="YAML file with options of the manifests")
    rendering.add_argument("--image", help="image of the servers, instead of the options' or the target's")

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


def _render(options: argparse.Namespace) -> int:
    from llm_pipeline.serving.kubernetes_manifests import pod_launch_plan, render_manifests, server_image, to_yaml
    from llm_pipeline.stages.request_parts import served_release

    manifest_options = _manifest_options(options)
    flow = open_flow(options, options.release)
    release = served_release(flow, _chosen_target(options.gpu_target, flow.targets, flow.record.release_id))
    files = {
        f"kubernetes/{name}": to_yaml(manifest)
        for name, manifest in render_manifests(release, manifest_options).items()
    }
    plan = pod_launch_plan(release, manifest_options)
    write_files(options.output, {"launch_plan.json": plan.model_dump_json(indent=1) + "\n", **files})
    sys.stdout.writelines(f"{options.output / name}\n" for name in ("launch_plan.json", *files))
    if "@" not in (image := server_image(release, manifest_options)):
        sys.stderr.write(f"warning: {image} is named by a tag, which may move: name its digest\n")
    return ExitCode.GO


def _manifest_options(options: argparse.Namespace) -> ServingManifestOptions:
    """The options of the file, with the deployment's store where they name none."""
    from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
    from llm_pipeline.config.loading import load_yaml

    chosen = load_yaml(options.options, ServingManifestOptions) if options.options else ServingManifestOptions()
    changes: dict[str, object] = {"image": options.image} if options.image else {}
    if "store" not in chosen.model_fields_set:
        changes["store"] = deployment_of(options).store
    return chosen.model_copy(update=changes)


def _chosen_target(asked: str | None, known: tuple[str, ...], release_id: str) -> str:
    if asked is None and len(known) == 1:
        return known[0]
    if asked not in known:
        problem = f"no target {asked!r}" if asked else "--target is needed"
        raise ConfigError(problem, where=release_id, hint=f"it has {', '.join(known)}")
    return asked


def _lay_out(options: argparse.Namespace) -> int:
    from pydantic import TypeAdapter, ValidationError

    from llm_pipeline.base.records import ArtifactRef
    from llm_pipeline.config.store import Store, StoreModel
    from llm_pipeline.serving.repository_links import lay_out_view
    from llm_pipeline.store import open_store

    kind, _, digest = options.repository.partition("/")
    try:
        settings: TypeAdapter[StoreModel] = TypeAdapter(Store)
        written = options.store.startswith("{")
        store = settings.validate_json(options.store) if written else settings.validate_python(options.store)
    except ValidationError as error:
        raise ConfigError(f"not a store: {error}", where="--store") from error
    lay_out_view(open_store(store), ArtifactRef(kind=kind, digest=digest), options.view)
    return ExitCode.GO


def _await(options: argparse.Namespace) -> int:
    from llm_pipeline.serving.repository_links import await_listeners

    await_listeners(options.addresses, 60 * options.minutes)
    return ExitCode.GO
