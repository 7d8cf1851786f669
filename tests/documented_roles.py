"""The permissions that the documentation asks for, read from its page: what it says must suffice is what is granted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_PAGE = Path(__file__).parents[1] / "docs" / "cluster.md"
_BLOCK = re.compile(r"^```yaml role\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documented_rules(name: str) -> list[dict[str, Any]]:
    """The rules of the Role `llm-pipeline-NAME` on the page about clusters."""
    roles = [role for block in _BLOCK.findall(_PAGE.read_text()) for role in yaml.safe_load_all(block)]
    (found,) = [role["rules"] for role in roles if role["metadata"]["name"] == f"llm-pipeline-{name}"]
    return list(found)


def without(rules: list[dict[str, Any]], resource: str, verb: str) -> list[dict[str, Any]]:
    """These rules without one permission."""
    left = [
        rule | {"verbs": [one for one in rule["verbs"] if (rule["resources"][0], one) != (resource, verb)]}
        for rule in rules
    ]
    return [rule for rule in left if rule["verbs"]]
