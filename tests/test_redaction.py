from __future__ import annotations

import pytest

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.redaction import without_credentials

SECRET = "0123456789abcdef0123456789ABCDEFsecret"
S3 = f"https://bucket.s3.amazonaws.com/file?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature={SECRET}"
CLOUDFRONT = f"https://cdn.example/repos/x?Expires=1&Policy={SECRET}&Signature={SECRET}~-_&Key-Pair-Id=K2FPYV99P2N66Q"


@pytest.mark.parametrize(
    "text",
    [
        S3,
        CLOUDFRONT,
        f"HTTP Request: GET {CLOUDFRONT} 'HTTP/1.1 200 OK'",
        f'https://cdn.example:443 "GET /repos/x?Signature={SECRET} HTTP/1.1" 200 None',
        f"Retrying after connection broken by 'X': /repos/x?sig={SECRET}&se=1",
        S3.replace("https", "HTTPS"),
        S3.replace("/", "\\/"),
        str(S3.encode()),
        repr([(b"location", S3.encode())]),
        "next=" + S3.replace(":", "%3A").replace("/", "%2F").replace("?", "%3F").replace("=", "%3D"),
        "next=" + S3.replace(":", "%253A").replace("/", "%252F").replace("?", "%253F").replace("=", "%253D"),
        S3.replace(SECRET, f"\x1b[31m{SECRET[:9]}\x1b[0m{SECRET[9:]}"),
        S3.replace("https", "ht\x1b[1mtps").replace("?", "?\x1b[1m"),
        S3.replace("&X-Amz-Sig", "\n&X-Amz-Sig"),
        S3.replace("Signature=", "Signature=\n"),
        f"at {S3[:90]}\n  {S3[90:]} end",
        f"X-Amz-Signature={SECRET} is what a wrapped line holds",
        S3.replace("&", "&amp;"),
        f"<a href='{S3}'>file</a>",
        f'{{"url":"{S3}","size":1}}',
        f"https://user:{SECRET}@host/path",
        f"https://user:p@{SECRET}@host/path",
        f"s3://key:with/a/slash{SECRET}@bucket",
        f"https://{SECRET}@host",
        f"https://host/callback#access_token={SECRET}",
        f"https://host/path?{SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}' https://host",
        f"(b'authorization', b'Basic {SECRET}')",
        f"{{'Authorization': 'Bearer {SECRET}'}}",
        f"bearer {SECRET}",
        f"token hf_{SECRET}",
    ],
)
def test_no_part_of_a_signature_or_token_is_left(text: str) -> None:
    assert "*" in (left := without_credentials(text))
    assert not [part for part in (SECRET, SECRET[:9], SECRET[9:], SECRET[-20:]) if part in left], left


def test_the_text_of_an_error_holds_no_signature() -> None:
    error = Transient(f"no answer from {S3}", where=CLOUDFRONT, hint=f"hf_{SECRET}")
    assert SECRET not in str(error) + error.to_document().model_dump_json()


def test_what_tells_where_it_happened_is_left() -> None:
    assert without_credentials(f"403 for {S3} (tried 3 times)") == (
        "403 for https://bucket.s3.amazonaws.com/file?*** (tried 3 times)"
    )


@pytest.mark.parametrize(
    "text",
    [
        "https://www.rfc-editor.org/rfc/rfc9110#field.retry-after",
        "is it right? key=value",
        "accuracy of 95 % (policy=strict) signature=valid tokens=512",
        "hf_quant_config.json and hf_transfer",
        "the bearer of this token; invalid credentials in Authorization header",
        "http://127.0.0.1:8080/v2/models/llm: no answer",
        "me@example.org",
        "s3://bucket/prefix",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert without_credentials(text) == text
