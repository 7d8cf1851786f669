"""The command that renders what a cluster serves a release with: `render`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of
from llm_pipeline.cli.texts import sentence, write_files

if TYPE_CHECKING:
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease, ServingManifestOptions


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    summary = "render a packaged release's launch plan and Kubernetes manifests"
    rendering = commands.add_parser("render", help=summary, description=sentence(summary))
    rendering.add_argument("release", metavar="RELEASE", help="a release (or the beginning of its id), or a pointer")
    rendering.add_argument("--target", dest="gpu_target", metavar="TARGET", help="needed if the release has several")
    rendering.add_argument("--output", type=Path, required=True, metavar="DIR", help="directory to write into")
    rendering.add_argument("--options", type=Path, metavar="FILE", help="YAML file with options of the manifests")
    rendering.add_argument("--image", help="image of the servers, instead of the options' or the target's")
    add_deployment_option(rendering)
    rendering.set_defaults(run=_render)


def _render(options: argparse.Namespace) -> int:
    from llm_pipeline.serving.kubernetes_manifests import pod_launch_plan, render_manifests, to_yaml
    from llm_pipeline.serving.kubernetes_manifests.pods import server_image

    manifest_options = _manifest_options(options)
    release = _served_release(options)
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
    from llm_pipeline.config.loading import load_yaml
    from llm_pipeline.serving.kubernetes_manifests import ServingManifestOptions

    chosen = load_yaml(options.options, ServingManifestOptions) if options.options else ServingManifestOptions()
    changes: dict[str, object] = {"image": options.image} if options.image else {}
    if "store" not in chosen.model_fields_set:
        changes["store"] = deployment_of(options).store
    return chosen.model_copy(update=changes)


def _served_release(options: argparse.Namespace) -> ServedRelease:
    from llm_pipeline.flow import Flow
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease
    from llm_pipeline.store import open_store
    from llm_pipeline.store.references import release_of, resolve_reference

    deployment = deployment_of(options)
    flow = Flow.open(deployment, release_of(resolve_reference(open_store(deployment.store), options.release)))
    name = _chosen_target(options.gpu_target, flow.targets, flow.record.release_id)
    return ServedRelease(
        name=flow.release.name,
        release_id=flow.record.release_id,
        model_id=flow.record.model.id,
        target=flow.release.target(name),
        repository=flow.artifact("package", name, "repository"),
        engine=flow.artifact("build", name, "engine"),
        checkpoint=flow.artifact("quantize", flow.chosen_recipe(name), "checkpoint"),
    )


def _chosen_target(asked: str | None, known: tuple[str, ...], release_id: str) -> str:
    if asked is None and len(known) == 1:
        return known[0]
    if asked not in known:
        problem = f"no target {asked!r}" if asked else "--target is needed"
        raise ConfigError(problem, where=release_id, hint=f"it has {', '.join(known)}")
    return asked
