"""Labels of containers and of Kubernetes objects that are ours."""

from __future__ import annotations

import re

from llm_pipeline.base.digest import sha256_json

LABEL_PREFIX = "llm-pipeline/"
"""What the names of our labels and annotations begin with."""

_READABLE_LENGTH = 40
_HASH_LENGTH = 10
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def label_value(text: str) -> str:
    """A text as the value of a label: unchanged if it may be one, else with a hash, so that no two texts meet.

    Source: kubernetes.io/docs/concepts/overview/working-with-objects/labels: at most 63 characters, alphanumeric at
    both ends.
    """
    if _LABEL_VALUE.fullmatch(text):
        return text
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_READABLE_LENGTH].strip("-_.")
    return f"{readable}-{sha256_json(text)[:_HASH_LENGTH]}".lstrip("-")
