"""Build the OpenVINO engines of a checkpoint, in the model environment: `plain_serving_build.py CHECKPOINT DIRECTORY`.

One engine a weight format, in a directory of its name, all of one thread. They appear only when they are complete.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.engines.builder import BuildInputs, engine_builder

WEIGHT_FORMATS = ("fp32", "int8")


def target(weight_format: str) -> Target:
    """The target of an engine; limits as `configs/targets/cpu.yaml` has them."""
    limits = EngineLimits(
        maximum_sequences=32, maximum_tokens_per_request=2048, maximum_batched_tokens=512,
        maximum_queued_requests=512, threads=1,
    )  # fmt: skip
    return Target(
        name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu", weight_format=weight_format,
        limits=limits,
    )  # fmt: skip


def main() -> None:
    """The command line."""
    checkpoint, directory = map(Path, sys.argv[1:])
    for weight_format in WEIGHT_FORMATS:
        if (directory / weight_format).exists():
            continue
        partial = directory / f"{weight_format}.partial"
        inputs = BuildInputs(
            checkpoint=checkpoint,
            target=target(weight_format),
            dtype="float16",
            checkpoint_ref=ArtifactRef(kind="checkpoint", digest="0" * 64),
        )
        engine_builder("openvino_cpu").build(inputs, partial)
        partial.rename(directory / weight_format)


if __name__ == "__main__":
    main()
