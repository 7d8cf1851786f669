"""The S3 client of a store: credentials, endpoint, retries, and Amazon's errors in our words."""

from __future__ import annotations

import importlib.util
from typing import Any

from llm_pipeline.base.errors import ConfigError, PipelineError, Terminal, Transient, Unsupported
from llm_pipeline.config.s3_place import S3Place
from llm_pipeline.store.blobs import Changed

CONNECTIONS = 16
"""Connections that one client keeps open; at least as many as there are threads that use it."""

_ATTEMPTS = 8
_CONNECT_SECONDS = 10

_REFUSALS = (401, 403)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_REFUSED = frozenset({"InvalidToken", "TokenRefreshRequired"})  # status 400
_SERVER_ERROR = 500
_NEEDED = "s3:GetObject, PutObject, DeleteObject, ListBucket, ListBucketMultipartUploads, AbortMultipartUpload"
_CREDENTIALS_HINT = (
    "check AWS_PROFILE, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; they need "
    f"{_NEEDED}, with aws:kms also kms:GenerateDataKey and kms:Decrypt"
)
_AGAIN = "run it again; it continues where it stopped"
_GONE = "it was listed a moment ago: run it again"
_REGION = "set AWS_DEFAULT_REGION to the bucket's region"


class Absent(Transient):
    """There is no such object."""


_KINDS: dict[str, tuple[type[PipelineError], str]] = {
    "404": (Absent, _GONE),
    "NoSuchKey": (Absent, _GONE),
    "412": (Changed, ""),
    "PreconditionFailed": (Changed, ""),
    "ConditionalRequestConflict": (Changed, ""),
    "OperationAborted": (Changed, ""),
    "NoSuchUpload": (Absent, ""),
    "NoSuchBucket": (ConfigError, "create the bucket, or correct store.uri and store.endpoint"),
    "301": (ConfigError, _REGION),
    "AuthorizationHeaderMalformed": (ConfigError, _REGION),
    "IllegalLocationConstraintException": (ConfigError, _REGION),
    "PermanentRedirect": (ConfigError, _REGION),
    "RequestTimeTooSkewed": (Terminal, "set this machine's clock: it is more than 15 minutes off S3's"),
    "BadDigest": (Transient, "the bytes were damaged in transit; run it again"),
    "InvalidPart": (Transient, _AGAIN),
    "RequestTimeout": (Transient, _AGAIN),
    "ServiceUnavailable": (Transient, _AGAIN),
    "SlowDown": (Transient, _AGAIN),
}


def require_boto3(config: S3Place) -> None:
    """Make sure that a client can be made here, without the time that importing it takes.

    Raises:
        Unsupported: boto3 is not installed in this interpreter.
    """
    if importlib.util.find_spec("boto3") is None:
        hint = "pip install 'llm-pipeline[store-s3]'"
        raise Unsupported("a store in S3 needs boto3", where=config.uri, hint=hint)


def connect(config: S3Place) -> Any:
    """A boto3 client of the store's bucket. It sends nothing yet.

    Raises:
        ConfigError: The profile does not exist, or the endpoint cannot be.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    options = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=_CONNECT_SECONDS,
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        # The store sends SHA-256 itself where bytes count, and verifies what it reads against the manifest; botocore's
        # default would add a CRC32 to both, in trailers that other S3 servers than Amazon's may not know.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3=_s3_options(config),
    )
    try:
        session = Session()  # boto3's own adds managed transfers, and is slow to import
        return session.create_client("s3", endpoint_url=config.endpoint, config=options)
    except (BotoCoreError, ValueError) as error:
        raise translated(error, config.uri) from error


def _s3_options(config: S3Place) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if config.endpoint:
        options["addressing_style"] = "path"  # its buckets may have no names of hosts
    if not (config.endpoint or "").startswith("http://"):
        # botocore's own rule for TLS with a checksum; it does not see a checksum that it did not compute, and would
        # hash every body once more. The signature covers the checksum.
        options["payload_signing_enabled"] = False
    return options


def translated(error: Exception, where: str) -> PipelineError:
    """The error of a request in the pipeline's words, with what to do about it."""
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        return _of_response(error, where)
    return _of_botocore(error, where)


def _of_response(error: Any, where: str) -> PipelineError:
    details = error.response.get("Error", {})
    code = str(details.get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = f"{error.operation_name}: {code}: {details.get('Message', '')}"
    if code in _KINDS:
        kind, hint = _KINDS[code]
        return kind(message, where=where, hint=hint)
    if code in _EXPIRED:
        hint = f"get new ones, then run it again; {_CREDENTIALS_HINT}"
        return Terminal(f"the credentials for S3 have expired: {message}", where=where, hint=hint)
    if code in _REFUSED or status in _REFUSALS:
        return Terminal(f"S3 refused {message}", where=where, hint=_CREDENTIALS_HINT)
    if status >= _SERVER_ERROR:
        return Transient(f"S3 cannot serve {message}", where=where, hint=_AGAIN)
    return Terminal(message, where=where, hint="check the store's configuration and the bucket's policy")


def _of_botocore(error: Exception, where: str) -> PipelineError:
    from botocore import exceptions as aws

    if isinstance(error, aws.ProfileNotFound):
        return ConfigError(str(error), where=where, hint="correct AWS_PROFILE, or add it to ~/.aws/config")
    if isinstance(error, _credential_errors()):
        return Terminal(f"no credentials for S3: {error}", where=where, hint=_CREDENTIALS_HINT)
    if isinstance(error, aws.SSLError):
        return Transient(str(error), where=where, hint="trust the endpoint's certificate: AWS_CA_BUNDLE")
    if isinstance(error, (aws.ParamValidationError, aws.NoRegionError, aws.BaseEndpointResolverError, ValueError)):
        return ConfigError(str(error), where=where, hint="correct store.endpoint, store.uri and AWS_DEFAULT_REGION")
    return Transient(
        f"no answer from S3: {error}", where=where, hint="check the network and store.endpoint, then run it again"
    )


def _credential_errors() -> tuple[type[Exception], ...]:
    from botocore import exceptions as aws

    return (
        aws.CredentialRetrievalError,
        aws.LoginError,
        aws.NoAuthTokenError,
        aws.NoCredentialsError,
        aws.PartialCredentialsError,
        aws.RefreshWithMFAUnsupportedError,
        aws.SSOError,
        aws.TokenRetrievalError,
    )
