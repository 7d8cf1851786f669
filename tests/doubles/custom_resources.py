"""A double of a Kubernetes API server that keeps custom resources: HTTPRoutes. Not Kubernetes.

It speaks HTTP, so the official client talks to it unchanged, and holds to what the API conventions say of an update:
the version that was read must be named and be the present one (409), the generation grows when the specification
changes and only then, a status is written by itself and never with the rest, unknown fields are dropped, defaults are
filled in, and a wrong value is refused (422). Fields come from the projects' own schemas, trimmed
(`recorded/*_v1.json`); their CEL rules are not evaluated. There is no admission, authorisation, patch or watch.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import jsonschema
from faulty_api import Document, FaultyApi, Refused, selected

_PATH = re.compile(
    r"/apis/(?P<group>[^/]+)/(?P<version>[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?P<status>/status)?"
)
_RECORDED = Path(__file__).with_name("recorded")
_OF_EVERY_OBJECT = ("apiVersion", "kind", "metadata")
_SCHEMAS = {
    "gateway.networking.k8s.io/v1/httproutes": "httproute_v1.json",
    "discovery.k8s.io/v1/endpointslices": None,  # built in, and only listed here
}


class CustomResources(FaultyApi):
    """The double."""

    def __init__(self, directory: Path) -> None:
        self._lock = threading.RLock()
        self._version = 1000
        self._objects: dict[tuple[str, str, str], Document] = {}
        super().__init__(directory)

    def apply(self, plural: str, document: Document) -> None:
        """Somebody else makes an object, or replaces it with all that it was."""
        with self._lock:
            self._version += 1
            new = self._admitted(_kind_of(plural), document)
            stamp = {"generation": 1, "resourceVersion": str(self._version), "uid": str(uuid.uuid4())}
            new["metadata"] = {**new["metadata"], **stamp}
            self._objects[(plural, new["metadata"]["namespace"], new["metadata"]["name"])] = new

    def edit(self, plural: str, namespace: str, name: str, change: Callable[[Document], None]) -> None:
        """Somebody else changes an object in place."""
        with self._lock:
            document = self.object(plural, namespace, name)
            change(document)
            self._put(_kind_of(plural), (plural, namespace, name), document, status=False)

    def write_status(self, plural: str, namespace: str, name: str, status: Document) -> None:
        """A controller writes what it saw."""
        with self._lock:
            document = self.object(plural, namespace, name) | {"status": status}
            self._put(_kind_of(plural), (plural, namespace, name), document, status=True)

    def object(self, plural: str, namespace: str, name: str) -> Document:
        with self._lock:
            return copy.deepcopy(self._objects[(plural, namespace, name)])

    def perform(self, method: str, target: str, body: Document | None) -> tuple[int, bytes]:
        url = urlparse(target)
        match = _PATH.fullmatch(url.path)
        kind = f"{match['group']}/{match['version']}/{match['plural']}" if match else ""
        if match is None or kind not in _SCHEMAS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        with self._lock:
            return 200, json.dumps(self._answer(method, kind, match, parse_qs(url.query), body)).encode()

    def _answer(self, method: str, kind: str, match: Any, query: dict[str, list[str]], body: Any) -> Document:
        plural, namespace, name = match["plural"], match["namespace"], match["name"]
        if method == "GET" and name is None:
            selector = query.get("labelSelector", [""])[0]
            found = [one for key, one in self._objects.items() if key[:2] == (plural, namespace)]
            return {"kind": "List", "metadata": {}, "items": [one for one in found if selected(one, selector)]}
        if (plural, namespace, name) not in self._objects:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        if method == "PUT":
            return self._put(kind, (plural, namespace, name), body, status=bool(match["status"]))
        if method != "GET":
            raise Refused(405, "MethodNotAllowed", "this double knows neither creation nor patch")
        return self._objects[(plural, namespace, name)]

    def _put(self, kind: str, key: tuple[str, str, str], body: Document, *, status: bool) -> Document:
        old, metadata = self._objects[key], body["metadata"]
        if not metadata.get("resourceVersion"):
            raise Refused(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
        if metadata["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", "the object has been modified")
        new = self._admitted(kind, body)
        if status:
            new = {**old, "status": new.get("status", {})}
        else:
            new.pop("status", None)
            new |= {"status": old["status"]} if "status" in old else {}
        annotations = metadata.get("annotations") == old["metadata"].get("annotations")
        if annotations and {**new, "metadata": None} == {**old, "metadata": None}:
            return old  # a write that changes nothing makes no new version
        self._version += 1
        changed = new["spec"] != old["spec"]
        stamp = {
            "uid": old["metadata"]["uid"],
            "generation": old["metadata"]["generation"] + changed,
            "resourceVersion": str(self._version),
        }
        self._objects[key] = new | {"metadata": {**(old["metadata"] if status else metadata), **stamp}}
        return self._objects[key]

    def _admitted(self, kind: str, document: Document) -> Document:
        """The object without unknown fields, with defaults, if every value is right."""
        if _SCHEMAS[kind] is None:
            return document
        schema = json.loads((_RECORDED / str(_SCHEMAS[kind])).read_text())["schema"]
        metadata = {name: document[name] for name in _OF_EVERY_OBJECT}
        known = _structured(document, schema) | metadata
        errors = sorted(jsonschema.Draft202012Validator(schema).iter_errors(known), key=str)
        if errors:
            where = ".".join(map(str, errors[0].absolute_path))
            raise Refused(422, "Invalid", f"{where}: Invalid value: {errors[0].message}")
        for annotation, value in metadata["metadata"].get("annotations", {}).items():
            if not isinstance(value, str):
                raise Refused(400, "BadRequest", f"annotation {annotation} is no string")
        return known


def _kind_of(plural: str) -> str:
    return next(kind for kind in _SCHEMAS if kind.endswith(f"/{plural}"))


def _structured(value: Any, schema: Document) -> Any:
    """A value as an API server stores it: pruned and defaulted by a structural schema."""
    if schema.get("x-kubernetes-preserve-unknown-fields") and "properties" not in schema:
        return value
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        kept = {k: v for k, v in value.items() if k in fields or schema.get("x-kubernetes-preserve-unknown-fields")}
        kept |= {k: field["default"] for k, field in fields.items() if "default" in field and k not in kept}
        return {k: _structured(v, fields[k]) if k in fields else v for k, v in kept.items()}
    if isinstance(value, list) and "items" in schema:
        return [_structured(item, schema["items"]) for item in value]
    return value
