"""Signatures of artifacts and of documents, made and checked with sigstore's model-signing.

A signature is a sigstore bundle over the SHA-256 of every file of an artifact and of its manifest, so where the
artifact came from is signed too. The hashes are the manifest's: no file is read again. An outsider checks an artifact
as it lies in the store with `model_signing verify key`.

A document is signed together with its name, so that it cannot be moved to another one. What a signature cannot tell is
an older document of the same name from the newest one.

https://github.com/sigstore/model-transparency
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import JsonValue

from llm_pipeline.base.digest import sha256_bytes, sha256_json
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.store import Signing
from llm_pipeline.store.manifest import COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE, Difference, Manifest

_NOT_AUTHENTIC = "altered: the signature does not fit its own content"
_NOT_A_BUNDLE = "not a signature: it is not a sigstore bundle"
_OF_JUNK = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What the library raises for a bundle that is none."""
_KEY_HINT = (
    "make a pair of keys: openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -out release.key; "
    "openssl ec -in release.key -pubout -out release.pub"
)


class Signatures:
    """Signs and checks artifacts as a store's configuration says; without one, nothing is signed or checked.

    Keys are elliptic-curve keys in PEM files; no network is needed. model_signing is imported when something is signed
    or checked, not before.

    Attributes:
        required: What is not signed by somebody trusted is refused.
    """

    def __init__(self, config: Signing | None) -> None:
        self._config = config
        self.required = config is not None

    def sign(self, manifest: Manifest, statement: bytes) -> bytes | None:
        """The signature of an artifact; None when none is required.

        `statement` is the content of its `_MANIFEST.json`.

        Raises:
            ConfigError: The key cannot be used, or what it signs would be refused.
            Unsupported: model_signing is not installed in this interpreter.
        """
        if self._config is None:
            return None
        if self._config.private_key is None:
            hint = "give private_key where stages run"
            problem = "this store requires signatures, and no signing key is set here"
            raise ConfigError(problem, where="signing", hint=hint)
        return self._signed(self._config, self._config.private_key, _of_artifact(manifest, statement))

    def sign_document(self, name: str, value: Mapping[str, JsonValue]) -> str | None:
        """The signature of a document under its name; None when nothing signs here.

        Raises:
            ConfigError: The key cannot be used, or what it signs would be refused.
            Unsupported: model_signing is not installed in this interpreter.
        """
        if self._config is None or self._config.private_key is None:
            return None
        return self._signed(self._config, self._config.private_key, _of_document(name, value)).decode()

    def problems(self, manifest: Manifest, statement: bytes, signature: bytes | None) -> list[Difference]:
        """What is wrong with an artifact's signature; empty when it is valid, or not required.

        Raises:
            ConfigError: A trusted key cannot be used.
            Unsupported: model_signing is not installed in this interpreter.
        """
        return _problems(self._config, _of_artifact(manifest, statement), signature) if self._config else []

    def document_problem(self, name: str, value: Mapping[str, JsonValue], signature: str | None) -> str | None:
        """What is wrong with a document's signature; None when it is valid, or not required.

        Raises:
            ConfigError: A trusted key cannot be used.
            Unsupported: model_signing is not installed in this interpreter.
        """
        if self._config is None:
            return None
        if signature is None:
            return "it is unsigned"
        found = _problems(self._config, _of_document(name, value), signature.encode())
        if not found:
            return None
        return found[0].problem if found[0].path == SIGNATURE_FILE else "it is not what was signed under this name"

    def _signed(self, config: Signing, key: str, hashes: _KnownHashes) -> bytes:
        signing, _ = _library()
        from cryptography.exceptions import UnsupportedAlgorithm

        password = None
        if variable := config.password_variable:
            password = os.environ.get(variable, "").encode()  # the library says str, and passes it on as bytes
            if not password:
                hint = "it holds the private key's password"
                raise ConfigError(f"{variable} is not set", where="signing.password_variable", hint=hint)
        try:
            signer = signing.Config().use_elliptic_key_signer(private_key=key, password=password)
        except (OSError, TypeError, ValueError, AttributeError, UnsupportedAlgorithm) as error:
            locked = f"the password in {variable} is not its own" if variable else "it has a password"
            reason = getattr(error, "strerror", None) or f"{locked}, or it is no elliptic-curve key in PEM form"
            raise ConfigError(f"the private key cannot be used: {reason}", where=key, hint=_KEY_HINT) from error
        with TemporaryDirectory() as directory:
            path = Path(directory, SIGNATURE_FILE)
            signer.set_hashing_config(hashes).sign(Path(), path)
            signature = path.read_bytes()
        if found := _problems(config, hashes, signature):
            hint = "add the public half of private_key to public_keys"
            raise ConfigError(f"what this key signs would be refused: {found[0].problem}", where="signing", hint=hint)
        return signature


def _problems(config: Signing, hashes: _KnownHashes, signature: bytes | None) -> list[Difference]:
    _, verifying = _library()
    from cryptography.exceptions import InvalidSignature

    trusted = {_key_name(path): path for path in config.public_keys}
    if signature is None:
        return [Difference(SIGNATURE_FILE, "missing: the artifact is unsigned")]
    try:
        signed_by = str(json.loads(signature)["verificationMaterial"]["publicKey"]["hint"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return [Difference(SIGNATURE_FILE, _NOT_A_BUNDLE)]
    if signed_by not in trusted:
        problem = f"signed by another key (SHA-256 {signed_by[:12]}), not by a trusted one"
        return [Difference(SIGNATURE_FILE, problem)]
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=trusted[signed_by])
    with TemporaryDirectory() as directory:
        path = Path(directory, SIGNATURE_FILE)
        path.write_bytes(signature)
        try:
            verifier.set_hashing_config(hashes).verify(Path(), path)
        except (*_OF_JUNK, InvalidSignature) as error:
            if hashes.asked:
                return hashes.unlike(signature)
            reason = f": {error}" if str(error) else ""
            return [Difference(SIGNATURE_FILE, _NOT_AUTHENTIC + reason)]
    return []


class _KnownHashes:
    """Stands where the library would hash files, and gives it the hashes that are known already.

    Attributes:
        asked: Whether the library asked for them. When it verifies, it does so once the bundle proved authentic.
    """

    def __init__(self, name: str, by_path: Mapping[str, str]) -> None:
        self.asked = False
        self.by_path = by_path
        self._name = name

    def hash(self, *_model_path: Any, **_options: Any) -> Any:
        """The library's own manifest; an artifact lies beside two files that it cannot cover."""
        from model_signing import manifest as library
        from model_signing._hashing.hashing import Digest

        self.asked = True
        items = [
            library.FileManifestItem(path=PurePosixPath(path), digest=Digest("sha256", bytes.fromhex(sha256)))
            for path, sha256 in self.by_path.items()
        ]
        form = {
            "method": "files",
            "hash_type": "sha256",
            "allow_symlinks": False,
            "ignore_paths": [COMPLETE_FILE, SIGNATURE_FILE],
        }
        return library.Manifest(self._name, items, library.SerializationType.from_args(form))

    def add_ignored_paths(self, **_options: Any) -> None:
        """The paths that a bundle says to ignore are not among the known hashes."""

    def unlike(self, signature: bytes) -> list[Difference]:
        """How they differ from what an authentic bundle signs."""
        payload = json.loads(base64.b64decode(json.loads(signature)["dsseEnvelope"]["payload"]))
        signed = {item["name"]: item["digest"] for item in payload["predicate"].get("resources", ())}
        other = sorted(path for path in signed.keys() | self.by_path if signed.get(path) != self.by_path.get(path))
        found = [Difference(path, "added, removed or altered since it was signed") for path in other]
        return found or [Difference(SIGNATURE_FILE, _NOT_AUTHENTIC)]


def _of_artifact(manifest: Manifest, statement: bytes) -> _KnownHashes:
    by_path = {file.path: file.sha256 for file in manifest.files} | {MANIFEST_FILE: sha256_bytes(statement)}
    return _KnownHashes(f"{manifest.kind}/{manifest.digest}", by_path)


def _of_document(name: str, value: Mapping[str, JsonValue]) -> _KnownHashes:
    """Never those of an artifact, which always has a manifest's among them."""
    return _KnownHashes(name, {name: sha256_json(value)})


def _key_name(path: str) -> str:
    """What a bundle calls the key that signed it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        _library()[1].Config().use_elliptic_key_verifier(public_key=path)
        key = load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError, AttributeError, UnsupportedAlgorithm) as error:
        reason = getattr(error, "strerror", None) or "it is no elliptic-curve key in PEM form"
        raise ConfigError(f"a public key cannot be used: {reason}", where=path, hint=_KEY_HINT) from error
    return hashlib.sha256(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _library() -> tuple[Any, Any]:
    try:
        from model_signing import signing, verifying
    except ModuleNotFoundError as error:
        problem = f"signatures need model_signing, and {error.name} is not installed in this interpreter"
        raise Unsupported(problem, hint="pip install 'llm-pipeline[signing]'") from error
    return signing, verifying
