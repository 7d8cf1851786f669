"""Pairs of keys for tests, the configuration that signs and verifies with them, and what nobody signed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from llm_pipeline.config.store import Signing


def signing_with_new_keys(directory: Path, password: str = "") -> Signing:
    """Signs with a new key, which may have a password, and trusts that one only."""
    directory.mkdir(parents=True, exist_ok=True)
    private, public = directory / "release.key", directory / "release.pub"
    key = ec.generate_private_key(ec.SECP256R1())
    lock = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return Signing(private_key=str(private), public_keys=(str(public),))


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change a signed file with a text editor."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
