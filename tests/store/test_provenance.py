"""The manifest is what it says: an in-toto Statement v1 with a SLSA Provenance v1 predicate."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance as SlsaProvenance
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.manifest import Manifest, ManifestFile
from llm_pipeline.store.provenance import PREDICATE_TYPE, Provenance, here

COMMIT = "b0e4de8ab2f4c1b5a37ea6ab15a8f1f1d8a1c0de"
FULL = Provenance(
    stage="quantize/3",
    subject="fp8",
    stage_key="ab" * 32,
    release_id="qwen-20260101",
    config={"recipe": {"name": "fp8", "calibration": {"size": 128}}, "seed": None},
    inputs={"checkpoint": ArtifactRef(kind="checkpoint", digest="cd" * 32)},
    tools={"nvidia-modelopt": "0.47.0"},
    made_by="ci bot@builder-7",
    container="registry.example.org/model@sha256:" + "ef" * 32,
    source_commit=COMMIT,
    started_at=datetime(2026, 1, 1, 12, tzinfo=UTC),
    finished_at=datetime(2026, 1, 1, 12, 30, 0, 500_000, tzinfo=UTC),
)
FILES = (
    ManifestFile(path="config.json", size=2, sha256="01" * 32),
    ManifestFile(path="sub/модель.bin", size=2**40, sha256="02" * 32),
)
MADE = {
    "full": FULL,
    "here": Provenance(**here()),
    "from a tree with changes": FULL.model_copy(update={"source_commit": f"{COMMIT}-dirty"}),
    "in an image without a digest": FULL.model_copy(update={"container": "model:1.2"}),
    "in an image known by its digest alone": FULL.model_copy(update={"container": "sha256:" + "ef" * 32}),
}


def _statement(made: Provenance) -> dict[str, Any]:
    return json.loads(Manifest(kind="checkpoint", files=FILES, provenance=made).to_json())


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_manifest_is_an_in_toto_statement_with_slsa_provenance(made: Provenance) -> None:
    """Parsing refuses unknown fields and wrong types; `validate` what is required."""
    statement = _statement(made)
    message = json_format.ParseDict(statement, StatementMessage())
    Statement.copy_from_pb(message).validate()
    assert [(one.name, dict(one.digest)) for one in message.subject] == [
        (one.path, {"sha256": one.sha256}) for one in FILES
    ]
    assert statement["predicateType"] == PREDICATE_TYPE == "https://slsa.dev/provenance/v1"
    slsa = json_format.ParseDict(statement["predicate"], SlsaProvenance())
    for uri in (slsa.build_definition.build_type, slsa.run_details.builder.id):
        assert uri.startswith("urn:llm-pipeline:")
        assert " " not in uri
    assert slsa.build_definition.HasField("external_parameters"), "required"
    dependencies = [*slsa.build_definition.resolved_dependencies, *slsa.run_details.builder.builder_dependencies]
    for dependency in dependencies:
        ResourceDescriptor.copy_from_pb(dependency).validate()
        for algorithm, value in dependency.digest.items():
            assert len(bytes.fromhex(value)) == {"sha256": 32, "gitCommit": 20}[algorithm]


def test_the_predicate_says_from_what_by_what_and_when_in_slsas_own_fields() -> None:
    slsa = json_format.ParseDict(_statement(FULL)["predicate"], SlsaProvenance())
    inputs, details = slsa.build_definition.resolved_dependencies, slsa.run_details
    assert [(item.name, item.digest["sha256"]) for item in inputs] == [("checkpoint", "cd" * 32)]
    assert {item.name: dict(item.digest) for item in details.builder.builder_dependencies} == {
        "container": {"sha256": "ef" * 32},
        "source": {"gitCommit": COMMIT},
    }
    assert details.builder.version["nvidia-modelopt"] == "0.47.0"
    assert details.metadata.invocation_id == "qwen-20260101"
    assert details.metadata.started_on.ToDatetime(UTC) == FULL.started_at
    assert details.metadata.finished_on.ToDatetime(UTC) == FULL.finished_at


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../../escape", "sub/../../escape", "./a", "a//b", "_COMPLETE.json", "a\0b"]
)
def test_a_manifest_that_names_a_file_outside_of_its_artifact_is_refused(path: str) -> None:
    statement = _statement(FULL)
    statement["subject"][0]["name"] = path
    with pytest.raises(IntegrityError, match="not a manifest"):
        Manifest.from_json(json.dumps(statement).encode())


@pytest.mark.parametrize(
    "rubbish", [b"", b"rubbish", b"{}", b"[]", b"null", b"[" * 100_000, b"\xff", b'{"_type": 1, "predicateType": 2}']
)
def test_rubbish_is_no_manifest(rubbish: bytes) -> None:
    with pytest.raises(IntegrityError, match="not a manifest"):
        Manifest.from_json(rubbish)
