"""An input that is not what was published and signed stops a stage before it does anything, whatever the stage."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.store import Signing, StoreModel, store_settings
from llm_pipeline.release import execute as execution
from llm_pipeline.release.contract import Stage, StageContext, StageFailure, StageOutput, StageRequest, StageResult


class NoConfig(ConfigModel):
    """Nothing to configure."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two key pairs as PEM files: one that is trusted, and a stranger's."""
    directory = tmp_path_factory.mktemp("keys")
    for name in ("release", "stranger"):
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (directory / f"{name}.key").write_bytes(private)
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (directory / f"{name}.pub").write_bytes(public)
    return directory


@pytest.fixture
def signed(tmp_path: Path, keys: Path) -> Callable[[str], StoreModel]:
    def config(signer: str) -> StoreModel:
        public = (str(keys / f"{signer}.pub"),)
        signing = Signing(private_key=str(keys / f"{signer}.key"), public_keys=public)
        return store_settings(uri=f"file://{tmp_path / 'store'}", signing=signing)

    return config


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    directory = tmp_path / "weights"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"w" * 5000)
    (directory / "config.json").write_text("{}")
    return directory


@pytest.fixture
def run_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signed) -> Callable[[ArtifactRef], object]:
    """Run a stage that reads one artifact, and never came so far when the artifact was refused."""
    began: list[Path] = []

    def work(context: StageContext[NoConfig]) -> StageOutput:
        began.append(context.inputs["checkpoint"])
        return StageOutput()

    stage = Stage(name="reader", version=1, config=NoConfig, run=work, reusable=False)
    monkeypatch.setattr(execution, "load_stage", lambda _name: stage)

    def run(ref: ArtifactRef) -> object:
        outcome = execution.execute(
            StageRequest(
                release_id="r1",
                stage="reader",
                config={},
                inputs={"checkpoint": ref},
                store=signed("release"),
                work_root=str(tmp_path / "work"),
            )
        )
        assert bool(began) == isinstance(outcome, StageResult)
        return outcome

    return run


def test_a_signed_input_is_used(run_stage, signed, weights: Path) -> None:
    assert isinstance(run_stage(LocalStore(signed("release")).publish("checkpoint", weights)), StageResult)


def _alter(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"w" * 4999 + b"x")


def _add(directory: Path) -> None:
    (directory / "sitecustomize.py").write_text("")


def _remove(directory: Path) -> None:
    (directory / "config.json").unlink()


@pytest.mark.parametrize(
    ("tamper", "named"), [(_alter, "model.safetensors"), (_add, "sitecustomize.py"), (_remove, "config.json")]
)
def test_a_file_that_is_not_as_it_was_signed_is_named(run_stage, signed, weights: Path, tamper, named: str) -> None:
    store = LocalStore(signed("release"))
    ref = store.publish("checkpoint", weights)
    tamper(store.root / "artifacts" / ref.kind / ref.digest)
    outcome = run_stage(ref)
    assert isinstance(outcome, StageFailure)
    assert outcome.error.family == "terminal"
    assert named in outcome.error.message


@pytest.mark.parametrize("signer", [None, "stranger"])
def test_what_nobody_we_trust_has_signed_is_refused(run_stage, signed, weights: Path, signer: str | None) -> None:
    config = signed(signer) if signer else store_settings(uri=signed("release").uri)
    outcome = run_stage(LocalStore(config).publish("checkpoint", weights))
    assert isinstance(outcome, StageFailure)
    assert outcome.error.family == "terminal"
    assert "_SIGNATURE.json" in outcome.error.message
