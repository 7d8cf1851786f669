"""Rules of instance groups (triton core, `ValidateInstanceGroup`), as far as they need no host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

_MOST_GPUS = 16
"""Of one host; more are possible, and unheard of."""


def instance_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """GPUs and profiles of every group; an ensemble has none, which is a rule of ensembles."""
    if model.is_ensemble:
        return
    for group in model.config.instance_group:
        yield from _gpus(model, group)
        if group.profile and model.config.platform != "tensorrt_plan" and model.config.backend != "tensorrt":
            message = "profile is for TensorRT models only"
            yield model.finding("instance_profile", message, "take profile out", model.field_line("profile"))


def _gpus(model: ModelSource, group: ModelInstanceGroup) -> Iterator[Finding]:
    line, gpus = model.field_line("gpus") or model.field_line("instance_group"), list(group.gpus)
    if gpus and group.kind in (group.KIND_CPU, group.KIND_MODEL):
        kind = type(group).Kind.Name(group.kind)
        message = f"a group of {kind} names GPUs {gpus}"
        yield model.finding("instance_gpus", message, "take gpus out, or kind: KIND_GPU", line)
    if negative := [gpu for gpu in gpus if gpu < 0]:
        yield model.finding("instance_gpus", f"there is no GPU {negative[0]}", "GPUs count from 0", line)
    elif above := [gpu for gpu in gpus if gpu >= _MOST_GPUS]:
        message = f"GPU {above[0]} needs a host of {above[0] + 1} GPUs: on any other the server refuses it"
        yield model.finding("instance_gpus", message, "GPUs count from 0", line, "warning")
