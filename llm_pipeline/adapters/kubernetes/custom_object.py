"""One object of a Kubernetes API, read and put back; errors in the words of a traffic router.

A put names the version that was read: the API server refuses it when anything was written meanwhile, a status
included. Lists in routes are atomic there, so a patch of one weight would not be safer, and could not be refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_pipeline.adapters.kubernetes.api import open_client, status_message
from llm_pipeline.canary.router import RouterConflict, RouterRejected, RouterUnavailable

Document = dict[str, Any]

_TIMEOUT_SECONDS = (3.0, 10.0)  # to connect, to wait for an answer
_WAITS_SECONDS = (0.2, 0.5)
_CONFLICT, _NOT_FOUND = 409, 404
_REFUSED = (400, _NOT_FOUND, 405, 413, 415, 422)
_NOT_ALLOWED = (401, 403)
_BUSY = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Resource:
    """A kind of objects as the API's paths have it, e.g. `networking.istio.io`, `v1`, `virtualservices`."""

    group: str
    version: str
    plural: str


class KubernetesObject:
    """An object of any kind, custom ones included.

    Args:
        resource: Its kind.
        namespace: Its namespace.
        name: Its name.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.

    Raises:
        Unsupported: The Kubernetes client is not installed in this interpreter.
        ConfigError: There is no such context, or no kubeconfig.
    """

    def __init__(self, resource: Resource, namespace: str, name: str, context: str | None) -> None:
        self.where = f"{resource.plural} {namespace}/{name}" + (f" of {context}" if context else "")
        self.namespace = namespace
        self._resource = resource
        self._name = name
        opened = open_client(context)
        from kubernetes import client

        self._objects = client.CustomObjectsApi(opened)

    def get(self) -> Document:
        """The object.

        Raises:
            RouterRejected: There is none.
            RouterUnavailable: It cannot be read now.
        """
        kind = self._resource
        return self._ask(
            self._objects.get_namespaced_custom_object,
            kind.group, kind.version, self.namespace, kind.plural, self._name,
        )  # fmt: skip

    def put(self, document: Document) -> Document:
        """Replace the object by a changed copy of the one that was read; returns what is there now.

        Raises:
            RouterConflict: It was written since then, even by this very put, whose answer may have been lost.
            RouterRejected: The server refuses this content.
            RouterUnavailable: It cannot be written now.
        """
        kind = self._resource
        return self._ask(
            self._objects.replace_namespaced_custom_object,
            kind.group, kind.version, self.namespace, kind.plural, self._name, document,
            field_manager="llm-pipeline",
        )  # fmt: skip

    def neighbours(self, resource: Resource, selector: str) -> list[Document]:
        """Objects of another kind with these labels, in the same namespace.

        Raises:
            RouterRejected: The server has no such kind.
            RouterUnavailable: They cannot be read now.
        """
        found = self._ask(
            self._objects.list_namespaced_custom_object,
            resource.group, resource.version, self.namespace, resource.plural,
            label_selector=selector,
        )  # fmt: skip
        return list(found.get("items") or ())

    def _ask(self, function: Callable[..., Any], *args: Any, **options: Any) -> Document:
        """Call the API, and try again while it is busy. A put whose answer was lost is then a conflict."""
        import urllib3
        from kubernetes.client import ApiException

        for wait in (*_WAITS_SECONDS, None):
            try:
                answer = function(*args, _request_timeout=_TIMEOUT_SECONDS, **options)
            except ApiException as error:
                if error.status not in _BUSY:
                    raise self._error(error) from error
                problem = f"{error.status} {error.reason}"
            except urllib3.exceptions.HTTPError as error:
                problem = str(error)
            else:
                if isinstance(answer, dict):
                    return answer
                problem = "an answer that is not an object"
            if wait is not None:
                time.sleep(wait)
        raise RouterUnavailable(f"the cluster does not answer: {problem}", where=self.where)

    def _error(self, error: Any) -> Exception:
        message = status_message(error)
        if error.status == _CONFLICT:
            return RouterConflict(message, where=self.where)
        if error.status == _NOT_FOUND:
            hint = "look at its namespace and name, and whether the cluster has this kind"
            return RouterRejected(message, where=self.where, hint=hint)
        if error.status in _REFUSED:
            return RouterRejected(f"the cluster refuses it: {message}", where=self.where)
        hint = f"this account needs: get and update {self._resource.plural}" if error.status in _NOT_ALLOWED else ""
        return RouterUnavailable(f"the cluster does not allow it: {message}", where=self.where, hint=hint)
