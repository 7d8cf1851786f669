"""Signatures of artifacts: real keys made by openssl, sigstore's library, and its own command line as an outsider."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.digest import sha256_file
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import Signing, store_settings
from llm_pipeline.store.manifest import COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE, Manifest, inventory, regular_files
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.seal import Seal
from llm_pipeline.store.signing import Signatures

PASSWORD = "canary-password-of-the-signing-key"


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of keys as docs/store.md makes them: ours, another one, and one with a password; and one of no use."""
    directory = tmp_path_factory.mktemp("keys")
    for name, curve in (("ours", "P-256"), ("other", "P-384"), ("locked", "P-256")):
        private = str(directory / f"{name}.pem")
        lock = ("-aes-256-cbc", "-pass", f"pass:{PASSWORD}") if name == "locked" else ()
        unlock = ("-passin", f"pass:{PASSWORD}") if name == "locked" else ()
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", f"ec_paramgen_curve:{curve}", *lock, "-out", private)
        _openssl("pkey", "-in", private, *unlock, "-pubout", "-out", str(directory / f"{name}.pub"))
    _openssl("genpkey", "-algorithm", "ED25519", "-out", str(directory / "edwards.pem"))
    _openssl("pkey", "-in", str(directory / "edwards.pem"), "-pubout", "-out", str(directory / "edwards.pub"))
    (directory / "rubbish.pem").write_text("rubbish")
    return directory


@pytest.fixture
def signing(keys: Path) -> Callable[..., Signing]:
    """A configuration by the names of its keys."""

    def make(private: str | None, *public: str, password: str | None = None) -> Signing:
        return Signing(
            private_key=str(keys / f"{private}.pem") if private else None,
            password_variable=password,
            public_keys=tuple(str(keys / f"{name}.pub") for name in public),
        )

    return make


@pytest.fixture
def open_with(tmp_path: Path) -> Callable[[Signing | None], LocalStore]:
    return lambda signing: LocalStore(store_settings(uri=f"file://{tmp_path}/store", signing=signing))


@pytest.fixture
def weights(weights: Path) -> Path:
    (weights / ".gitattributes").write_text("*.bin filter=lfs")  # which sigstore would leave out by itself
    return weights


def _directory(store: LocalStore, ref: ArtifactRef) -> Path:
    return store.root / "artifacts" / ref.kind / ref.digest


def _outsiders_command(directory: Path, public_key: Path) -> list[str]:
    files = ["--signature", str(directory / SIGNATURE_FILE), "--public_key", str(public_key)]
    return ["verify", "key", str(directory), "--no-ignore-git-paths", *files]


def _sigstore(command: list[str]) -> tuple[int, str]:
    """Run sigstore's command line in this process, which has imported it already."""
    from click.testing import CliRunner
    from model_signing._cli import main

    done = CliRunner().invoke(main, command)
    return done.exit_code, done.output


def _reseal(directory: Path) -> None:
    """Make the completion marker fit, as somebody would who may write to the store but has no key."""
    signature = directory / SIGNATURE_FILE
    seal = Seal(
        manifest_sha256=sha256_file(directory / MANIFEST_FILE),
        signature_sha256=sha256_file(signature) if signature.exists() else None,
    )
    (directory / COMPLETE_FILE).write_text(seal.model_dump_json())


def test_a_signed_artifact_is_fetched_by_whoever_trusts_the_key(open_with, signing, weights: Path) -> None:
    ref = open_with(signing("ours", "ours")).publish("checkpoint", weights)
    reader = open_with(signing(None, "other", "ours"))
    assert reader.verify(ref) == []
    assert (reader.fetch(ref) / "model.bin").read_bytes() == (weights / "model.bin").read_bytes()


def test_an_outsider_sees_any_change_also_of_the_provenance(open_with, signing, weights: Path, keys: Path) -> None:
    store = open_with(signing("ours", "ours"))
    directory = _directory(store, store.publish("checkpoint", weights, Provenance(made_by="ci")))
    command = _outsiders_command(directory, keys / "ours.pub")
    assert _sigstore([*command, "--ignore-paths", str(directory / COMPLETE_FILE)]) == (0, "Verification succeeded\n")
    for name in ("model.bin", MANIFEST_FILE, ".gitattributes"):
        original = (directory / name).read_bytes()
        (directory / name).write_bytes(original + b" ")
        status, said = _sigstore(command)
        assert (status, "Hash mismatch" in said, name in said) == (1, True, True)
        (directory / name).write_bytes(original)
    (directory / "backdoor.py").write_text("")
    assert "Extra files found" in _sigstore(command)[1]


def test_a_signature_by_another_key_is_refused(open_with, signing, weights: Path) -> None:
    ref = open_with(signing("other", "other")).publish("checkpoint", weights)
    with pytest.raises(IntegrityError, match="signed by another key"):
        open_with(signing(None, "ours", "locked")).fetch(ref)


def test_a_forged_manifest_is_refused_although_its_seal_fits(open_with, signing, weights: Path) -> None:
    store = open_with(signing("ours", "ours"))
    ref = store.publish("checkpoint", weights, Provenance(made_by="ci"))
    directory = _directory(store, ref)
    (directory / MANIFEST_FILE).write_text((directory / MANIFEST_FILE).read_text().replace("builder:ci", "builder:me"))
    _reseal(directory)
    assert [found.path for found in store.verify(ref)] == [MANIFEST_FILE]


def test_another_artifacts_signature_is_refused_with_every_difference_named(
    open_with, signing, weights: Path, tmp_path: Path
) -> None:
    store = open_with(signing("ours", "ours"))
    ref = store.publish("checkpoint", weights)
    other = tmp_path / "other"
    shutil.copytree(weights, other)
    (other / "model.bin").write_bytes(b"other weights")
    (other / "sub" / "config.json").rename(other / "backdoor.json")
    forged = store.publish("checkpoint", other)
    shutil.copy(_directory(store, ref) / SIGNATURE_FILE, _directory(store, forged))
    _reseal(_directory(store, forged))
    found = store.verify(forged)
    assert {one.path for one in found} == {"sub/config.json", "backdoor.json", MANIFEST_FILE, "model.bin"}
    assert {one.problem for one in found} == {"added, removed or altered since it was signed"}


ALTERED: dict[str, Callable[[dict], object]] = {
    "no hint": lambda bundle: bundle["verificationMaterial"]["publicKey"].pop("hint"),
    "other payload": lambda bundle: bundle["dsseEnvelope"].update(payload="e30="),
    "other signature": lambda bundle: bundle["dsseEnvelope"]["signatures"][0].update(sig="AAAA"),
    "no envelope": lambda bundle: bundle.pop("dsseEnvelope"),
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED)
def test_an_altered_bundle_is_refused(signing, weights: Path, alter: Callable[[dict], object], capsys) -> None:
    signatures, manifest = Signatures(signing("ours", "ours")), manifest_of(weights)
    bundle = json.loads(signatures.sign(manifest, manifest.to_json()) or b"")
    alter(bundle)
    found = signatures.problems(manifest, manifest.to_json(), json.dumps(bundle).encode())
    assert [difference.path for difference in found] == [SIGNATURE_FILE]
    assert found[0].problem.startswith(("altered: ", "not a signature: "))
    assert capsys.readouterr().out == ""


def manifest_of(weights: Path) -> Manifest:
    return Manifest(kind="checkpoint", files=inventory(weights, regular_files(weights)))


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"null", b"\xff\xfe", b"[" * 100_000])
def test_rubbish_in_place_of_a_signature_is_refused(signing, weights: Path, rubbish: bytes) -> None:
    manifest = manifest_of(weights)
    found = Signatures(signing(None, "ours")).problems(manifest, manifest.to_json(), rubbish)
    assert [difference.problem for difference in found] == ["not a signature: it is not a sigstore bundle"]


def test_a_key_whose_signatures_would_be_refused_publishes_nothing(open_with, signing, weights: Path) -> None:
    store = open_with(signing("ours", "other"))
    with pytest.raises(ConfigError, match="would be refused: signed by another key"):
        store.publish("checkpoint", weights)
    assert list(store.artifacts()) == []


def test_a_key_with_a_password_signs(open_with, signing, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PASSWORD", PASSWORD)
    store = open_with(signing("locked", "locked", password="KEY_PASSWORD"))
    ref = store.publish("checkpoint", weights)
    assert store.verify(ref) == []
    directory = _directory(store, ref)
    assert all(PASSWORD.encode() not in path.read_bytes() for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "case",
    [
        ("absent", None, "No such file"),
        ("rubbish", None, "it has a password, or it is no elliptic-curve key"),
        ("edwards", None, "no elliptic-curve key"),
        ("locked", None, "it has a password"),
        ("locked", "wrong-" + PASSWORD, "the password in KEY_PASSWORD is not its own"),
        ("ours", PASSWORD, "the password in KEY_PASSWORD is not its own"),
        ("locked", "", "KEY_PASSWORD is not set"),
    ],
)
def test_a_private_key_that_cannot_be_used_is_a_mistake_of_the_configuration(
    open_with, signing, weights: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str | None, str]
) -> None:
    private, password, said = case
    monkeypatch.setenv("KEY_PASSWORD", password or "")
    variable = None if password is None else "KEY_PASSWORD"
    with pytest.raises(ConfigError, match=said) as raised:
        open_with(signing(private, "ours", password=variable)).publish("checkpoint", weights)
    assert raised.value.where
    assert raised.value.hint
    error: BaseException | None = raised.value
    while error is not None:
        assert PASSWORD not in f"{error!r} {error}"
        error = error.__cause__


@pytest.mark.parametrize("public", ["absent", "edwards"])
def test_a_public_key_that_cannot_be_used_is_a_mistake_of_the_configuration(
    open_with, signing, weights: Path, public: str
) -> None:
    ref = open_with(None).publish("checkpoint", weights)
    with pytest.raises(ConfigError, match="a public key cannot be"):
        open_with(signing(None, "ours", public)).verify(ref)
