"""Versions of the model `llm` on a running server: added beside others, and removed again without dropping a request.

    versions = ModelVersions(control, directory)
    second = versions.add(repository, digest=digest)    # serves beside the first one
    versions.restore(second, config, others)            # as it was before

Each version has new files, so that a load always takes effect: Triton ignores a load of unchanged files, even if the
model's process has died. All loaded versions share the configuration of the last load, its digest included. Requests
in flight on a version are answered before it is unloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_pipeline.adapters.existing_triton.model_control import ModelConfigDocument, ModelControl
from llm_pipeline.adapters.existing_triton.model_directory import ModelDirectory
from llm_pipeline.artifacts.repository_layout import CONFIG_FILE, FACT_PREFIX, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.errors import IntegrityError, Transient, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.serving.identity import DIGEST_PARAMETER

log = get_logger(__name__)

_GONE_SECONDS = 60.0
_SHARED = (
    "backend", "dynamic_batching", "input", "instance_group", "max_batch_size", "model_transaction_policy", "output",
    "parameters",
)  # fmt: skip


class ModelVersions:
    """The versions of one model.

    Args:
        control: Of the server.
        directory: The model in the repository that the server reads.
    """

    def __init__(self, control: ModelControl, directory: ModelDirectory) -> None:
        self._control = control
        self._directory = directory

    def ready(self) -> tuple[int, ...]:
        """The versions that take requests, in order."""
        return tuple(sorted(version.number for version in self._control.versions(MODEL_NAME) if version.ready))

    def config(self, ready: tuple[int, ...]) -> ModelConfigDocument | None:
        """The configuration of the versions that are ready; None where none is.

        Raises:
            Transient: The server does not tell it: without it, they could not be restored.
        """
        if not ready:
            return None
        if (config := self._control.config(MODEL_NAME)) is None:
            raise Transient(
                f"the server does not say how the ready versions {list(ready)} are configured", where=MODEL_NAME
            )
        return config

    def free_number(self) -> int:
        """A number above all that the server or its repository knows: Triton sends requests without a version there."""
        known = (*self._directory.versions(), *(version.number for version in self._control.versions(MODEL_NAME)))
        return max(known, default=0) + 1

    def add(
        self, repository: Path, *, digest: str, links: Mapping[str, Path] | None = None, version: int | None = None
    ) -> int:
        """Serve a repository's model as a version beside those that are ready; the others go on serving.

        Args:
            repository: A model repository of this package.
            digest: Its digest, which the model's configuration then states.
            links: Local directories of what it links to, by their place in it.
            version: Its number; None for the next free one.

        Returns:
            The version's number.

        Raises:
            ModelRefused: The server cannot load it, and says why; nothing of it is left.
            Unsupported: The repository holds more than one model.
        """
        _require_one_model(repository)
        others = self.ready()
        number = self.free_number() if version is None else version
        before = self.config(others)
        source = repository / MODEL_NAME / str(MODEL_VERSION)
        self._directory.add(number, source, _within_version(links or {}))
        try:
            if before is not None:
                self._try_out(number, before, others)
            self._control.load(MODEL_NAME, _with_versions(candidate_config(repository, digest), (*others, number)))
        except BaseException:
            self.restore(number, before, others)
            raise
        log.info("model version loaded", model=MODEL_NAME, version=number, beside=str(list(others)))
        return number

    def _try_out(self, version: int, config: ModelConfigDocument, others: tuple[int, ...]) -> None:
        """Load a version under the present configuration, and unload it.

        A load with other parameters, the digest among them, loads the other versions anew, too. Where it fails
        meanwhile Triton (2.51) may end with a segmentation fault. Under the present one they are left alone.
        """
        self._control.load(MODEL_NAME, _with_versions(config, (*others, version)))
        self._control.load(MODEL_NAME, _with_versions(config, others))
        self._await_gone({version})

    def restore(self, version: int, config: ModelConfigDocument | None, others: tuple[int, ...]) -> None:
        """Remove a version, and serve the earlier ones again with their configuration.

        Args:
            version: The version to remove.
            config: The model's configuration before it; None when it was not loaded.
            others: The versions that were ready before it.
        """
        if others and config is not None:
            if self._control.config(MODEL_NAME) != config or self.ready() != others:
                self._control.load(MODEL_NAME, _with_versions(config, others))
        elif any(known.number == version for known in self._control.versions(MODEL_NAME)):
            self._control.unload(MODEL_NAME)
        self._await_gone({version})
        self._directory.remove(version)

    def _await_gone(self, versions: set[int]) -> None:
        def gone() -> bool:
            known = self._control.versions(MODEL_NAME)
            return versions.isdisjoint(one.number for one in known if _holds_memory(one.state))

        if not wait_until(gone, _GONE_SECONDS):
            raise Transient(
                f"version {sorted(versions)} is not unloaded after {_GONE_SECONDS:g} s",
                where=MODEL_NAME,
                hint="is a request still in flight? try again",
            )


def candidate_config(repository: Path, digest: str) -> dict[str, Any]:
    """The configuration of a repository's model, with the digest among its parameters.

    Raises:
        IntegrityError: There is no configuration, or it is not one.
    """
    from google.protobuf import text_format
    from google.protobuf.json_format import MessageToDict
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    path = repository / MODEL_NAME / CONFIG_FILE
    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
    except (OSError, text_format.ParseError) as error:
        raise IntegrityError(f"not a model's configuration: {error}", where=str(path)) from error
    config.parameters[DIGEST_PARAMETER].string_value = digest
    document: dict[str, Any] = MessageToDict(config, preserving_proto_field_name=True)
    return document


def differing_fields(config: ModelConfigDocument, other: ModelConfigDocument) -> tuple[str, ...]:
    """Fields in which two configurations make models differ; versions of one model share all of them.

    Informational parameters (facts, the digest), the version policy and what the server adds are ignored.
    """
    one, two = _comparable(config), _comparable(other)
    return tuple(field for field in _SHARED if one.get(field) != two.get(field))


def _comparable(config: ModelConfigDocument) -> dict[str, Any]:
    """In protobuf's own form: HTTP and gRPC differ in defaults and in numbers."""
    from google.protobuf.json_format import MessageToDict, ParseDict
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    message = ParseDict(dict(config), ModelConfig(), ignore_unknown_fields=True)
    for name in [name for name in message.parameters if name == DIGEST_PARAMETER or name.startswith(FACT_PREFIX)]:
        del message.parameters[name]
    for group in message.instance_group:
        group.name = ""  # the server names them
    document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return document


def _with_versions(config: ModelConfigDocument, versions: tuple[int, ...]) -> dict[str, Any]:
    return {**config, "version_policy": {"specific": {"versions": sorted(versions)}}}


def _holds_memory(state: str) -> bool:
    return state in ("READY", "LOADING", "UNLOADING")


def _require_one_model(repository: Path) -> None:
    models = sorted(path.parent.name for path in repository.glob(f"*/{CONFIG_FILE}"))
    if models != [MODEL_NAME]:
        raise Unsupported(
            f"a repository of {', '.join(models) or 'no model'} cannot be one version of the model {MODEL_NAME}",
            where=str(repository),
            hint="serve it with a server of its own: local, docker or kubernetes",
        )


def _within_version(links: Mapping[str, Path]) -> dict[str, Path]:
    """Links by their place in the version's directory."""
    prefix = f"{MODEL_NAME}/{MODEL_VERSION}/"
    if outside := sorted(name for name in links if not name.startswith(prefix)):
        raise Unsupported(
            f"links outside of the version: {', '.join(outside)}", hint="serve it with a server of its own"
        )
    return {name.removeprefix(prefix): path for name, path in links.items()}
