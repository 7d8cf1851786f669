"""Where artifacts are kept, and whose signature they must bear."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from llm_pipeline.base.adapters import is_ours
from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.config.installed import installed_model
from llm_pipeline.config.model import (
    ConfigModel,
    HostPath,
    Line,
    PathsRelativeTo,
    PathText,
    PlainUrl,
    VariableName,
    Word,
    host_path,
)

_FILE_SCHEME = "file://"
_KIND = re.compile(r"([a-z][a-z0-9+.-]*)://")
_LOCAL = re.compile(r"file:///[^?#]*")
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9][A-Za-z0-9._/-]*))?")


class Keyless(ConfigModel):
    """Signing by an identity of an OpenID provider.

    Attributes:
        identity: Whose signature is trusted: an e-mail address or a workload's URI.
        issuer: The provider, e.g. `https://token.actions.githubusercontent.com`.
        token_variable: Environment variable with the identity token that signs.
    """

    identity: Line
    issuer: Line
    token_variable: VariableName = "SIGSTORE_ID_TOKEN"  # noqa: S105 - the name of a variable, not a token


class Signing(ConfigModel):
    """Signatures of artifacts and results, made and checked with sigstore's model-signing.

    A stage signs what it publishes and its result when `private_key` or `keyless` is set. When `required` is set, an
    input without a valid signature is refused, and a stored result without one is computed again.

    Attributes:
        private_key: PEM file of the elliptic-curve key that signs; None where nothing is signed.
        password_variable: Environment variable with the private key's password; None when it has none.
        public_keys: PEM files of the keys that are trusted; any of them may have signed.
        keyless: Sign and verify by identity (Fulcio and Rekor) instead of by key.
        required: An artifact or a result without a valid signature is not used.
    """

    private_key: HostPath | None = None
    password_variable: VariableName | None = None
    public_keys: Annotated[tuple[HostPath, ...], Field(max_length=64)] = ()
    keyless: Keyless | None = None
    required: bool = True

    @model_validator(mode="after")
    def _can_verify(self) -> Signing:
        if self.keyless is not None and (self.private_key or self.public_keys):
            raise ValueError("choose keyless, or keys, not both")
        if self.required and self.keyless is None and not self.public_keys:
            raise ValueError("required: true needs public_keys (or keyless) to verify with")
        return self


class StoreConfig(ConfigModel):
    """An artifact store. Written as its URI alone, or with these fields.

    A store of another package is one of a scheme of its own; its model derives from this one.

    Attributes:
        uri: `file:///absolute/path`, a path (written as any `HostPath`), or `s3://bucket/prefix`; another scheme for
            a store that an installed package brings.
        cache: Directory for local copies of artifacts in S3; `<work_root>/cache` when a deployment leaves it out.
        endpoint: URL of another S3 API than Amazon's.
        region: The bucket's region; None for the environment's.
        profile: Profile of the AWS configuration files; None for the default chain of credentials.
        role: ARN of a role to assume.
        encryption: Server-side encryption of everything written; None leaves it to the bucket.
        kms_key: The key, for `aws:kms`.
        signing: Signatures of artifacts; None for no signatures.
    """

    uri: PathText
    cache: HostPath | None = None
    endpoint: PlainUrl | None = None
    region: Word | None = None
    profile: Word | None = None
    role: str | None = Field(default=None, pattern=r"^arn:", max_length=2048)
    encryption: Literal["AES256", "aws:kms"] | None = None
    kms_key: Line | None = None
    signing: Signing | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_uri(cls, value: Any) -> Any:
        return {"uri": value} if isinstance(value, str) else value

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, value: Any, ours: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        uri = value.get("uri") if isinstance(value, Mapping) else value
        if cls is not StoreConfig or not isinstance(uri, str):
            return ours(value)
        kind = _kind(uri)
        if not kind or is_ours("stores", kind):
            return ours(value)
        try:
            model = installed_model("stores", kind)
        except ValueError as error:
            raise ValueError(f"not a store: {without_credentials(uri)!r}; {error}") from error
        found: Self = model.model_validate(value, context=info.context)
        return found

    @field_validator("uri")
    @classmethod
    def _is_known(cls, uri: str, info: ValidationInfo) -> str:
        if isinstance(info.context, PathsRelativeTo) and (_LOCAL.fullmatch(uri) or "://" not in uri):
            return f"{_FILE_SCHEME}{host_path(uri.removeprefix(_FILE_SCHEME), info)}"
        other = cls is not StoreConfig and not is_ours("stores", _kind(uri))
        if "://" in uri and not other and not _LOCAL.fullmatch(uri) and not _S3.fullmatch(uri):
            raise ValueError(
                f"not a store: {without_credentials(uri)!r}; use file:///absolute/path or s3://bucket/prefix"
            )
        return uri.rstrip("/") if uri.startswith("s3://") else uri

    @model_validator(mode="after")
    def _options_fit(self) -> StoreConfig:
        given = [name for name in ("endpoint", "region", "profile", "role", "encryption") if getattr(self, name)]
        if given and self.directory:
            raise ValueError(f"{', '.join(given)}: only for a store in S3")
        if self.kms_key and self.encryption != "aws:kms":
            raise ValueError("kms_key needs encryption: aws:kms")
        return self

    def problems(self) -> Iterator[str]:
        """Why nothing can be kept there, as far as its settings tell; `plan` refuses the deployment."""
        yield from ()

    def warnings(self) -> Iterator[str]:
        """What `plan` says of it besides."""
        yield from ()

    @property
    def kind(self) -> str:
        """The scheme of its URI; the entry points `llm_pipeline.stores` are named by it."""
        return _kind(self.uri) or "file"

    @property
    def directory(self) -> Path | None:
        """The directory of a store on a file system; None for any other."""
        return Path(self.uri.removeprefix(_FILE_SCHEME)) if self.uri.startswith(_FILE_SCHEME) else None

    @property
    def bucket_and_prefix(self) -> tuple[str, str]:
        """Bucket and key prefix (no slash at its end, may be empty) of a store in S3.

        Raises:
            ValueError: The store is not in S3.
        """
        match = _S3.fullmatch(self.uri)
        if match is None:
            raise ValueError(f"{self.uri} is not in S3")
        return match["bucket"], (match["prefix"] or "").rstrip("/")


Store = Annotated[StoreConfig, SerializeAsAny()]
"""A store of ours, or one that an installed package brings, whose own settings are kept when it is written out."""


def _kind(uri: str) -> str:
    found = _KIND.match(uri)
    return found[1] if found else ""
