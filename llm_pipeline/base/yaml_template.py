"""YAML files as Jinja templates: what a template's expressions write cannot change what the YAML around it means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON leaves as they are, and YAML refuses or takes for the end of a line."""


def render_yaml(package: str, directory: str, template: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The object that a template makes of values.

    Every expression writes its value as JSON, which YAML reads as that value: texts, whole numbers, lists and mappings.

    Args:
        package: Package that holds the templates.
        directory: Their directory in it; templates may import one another.
        template: Name of the file.
        values: What the template names; it is an error if one is missing.
    """
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(package, directory),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_quoted,
    )
    text = templates.get_template(template).render(values)
    rendered: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
    return rendered


def _quoted(value: object) -> object:
    from markupsafe import Markup

    if isinstance(value, Markup):  # the template's own text, from a macro
        return value
    text = json.dumps(value, ensure_ascii=False)
    return Markup(_NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text))  # noqa: S704
