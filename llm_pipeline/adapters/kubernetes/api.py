"""The few calls to a Kubernetes API server that we make, tried again while the server is busy; objects are its JSON.

Whoever waits looks at the state again and again and holds no watch: nothing is missed when a connection drops, and a
worker that takes over needs nothing from the one before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NoReturn

from llm_pipeline.base.errors import ConfigError, Transient, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.waiting import wait_until

Json = dict[str, Any]

log = get_logger(__name__)

_WAITS_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0)
_LONGEST_WAIT_SECONDS = 15.0
_POLL_SECONDS = 0.2
NOT_FOUND, CONFLICT, BAD_REQUEST = 404, 409, 400
_BUSY = (429, 500, 502, 503, 504)
NOT_ALLOWED = (401, 403)
_PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "HTTPRoute": "/apis/gateway.networking.k8s.io/v1/namespaces/{namespace}/httproutes",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Service": "/api/v1/namespaces/{namespace}/services",
}


class Cluster:
    """One cluster, in one namespace.

    Args:
        namespace: Where the objects are.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
        needs: What the account must be allowed, in words.
    """

    timeout_seconds = (5.0, 60.0)
    """To connect, to wait for an answer."""
    unavailable: type[Transient] = Transient
    """The error of a server that does not answer, or is too busy."""

    def __init__(self, namespace: str, context: str | None, needs: str) -> None:
        self.namespace = namespace
        self._needs = needs
        self.where = f"namespace {namespace}" + (f" of {context}" if context else "")
        self._client = open_client(context)

    def create(self, manifest: Json) -> bool:
        """Create an object; False when one of that name is there.

        Raises:
            ConfigError: The server refuses it.
            Transient: The server cannot be reached, or is too busy.
        """
        strict = {"fieldValidation": "Strict"}
        return self._ask("POST", manifest["kind"], query=strict, body=manifest, accept=CONFLICT) is not None

    def read(self, kind: str, name: str) -> Json | None:
        """An object by its kind and name; None where there is none."""
        return self._ask("GET", kind, name, accept=NOT_FOUND)

    def list(self, kind: str, labels: Mapping[str, str] | None = None, *, field: str = "") -> list[Json]:
        """Objects of a kind, with these labels, or a field of a value."""
        query = {"labelSelector": ",".join(f"{name}={value}" for name, value in (labels or {}).items())}
        query |= {"fieldSelector": field} if field else {}
        found = self._ask("GET", kind, query={name: value for name, value in query.items() if value})
        return list((found or {}).get("items") or ())

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and what it owns before it, if there is one."""
        self._ask("DELETE", kind, name, body={"propagationPolicy": "Foreground"}, accept=NOT_FOUND)

    def remove(self, kind: str, name: str, pods: Mapping[str, str], seconds: float) -> None:
        """Delete an object, and wait until its pods, and with them their GPUs, are free.

        Raises:
            Transient: They do not end.
        """
        self.delete(kind, name)

        def gone() -> bool:
            return self.read(kind, name) is None and not self.list("Pod", pods)

        if not wait_until(gone, seconds, every=_POLL_SECONDS):
            hint = "is their node lost? see kubectl get pods; then run it again"
            raise Transient("its pods do not end", where=f"{kind} {name}", hint=hint)

    def log(self, pod: str, container: str, **query: str) -> str:
        """A container's log; empty while there is none. `query` is as the API has it: `sinceTime`, `tailLines`."""
        answer: bytes | None = self._call(
            f"{_PATHS['Pod']}/{pod}/log",
            "GET",
            query_params=[("container", container), *query.items()],
            header_params={"Accept": "*/*"},
            _preload_content=False,  # the client would give the text of its bytes, as Python writes it
            finish=attrgetter("data"),
            accept=(NOT_FOUND, BAD_REQUEST),  # the pod is gone, or its container waits
        )
        return answer.decode(errors="replace") if answer else ""

    def events(self, name: str) -> tuple[str, ...]:
        """What the cluster says about an object, the newest last; nothing where that may not be read."""
        try:
            found = self.list("Event", field=f"involvedObject.name={name}")
        except ConfigError:
            return ()
        return tuple(f"{event.get('reason')}: {event.get('message')}" for event in found)[-3:]

    def _ask(
        self,
        method: str,
        kind: str,
        name: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        accept: int = 0,
    ) -> Json | None:
        found: Json | None = self._call(
            _PATHS[kind] + (f"/{name}" if name else ""),
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            response_types_map={200: "object", 201: "object", 202: "object"},
            accept=(accept,),
        )
        return found

    def _call(
        self,
        path: str,
        method: str,
        *,
        accept: tuple[int, ...],
        finish: Callable[[Any], Any] = lambda answer: answer,
        **options: Any,
    ) -> Any:
        """Call the API and finish what it answers, which may break off; None for a refusal that is accepted.

        Every call may be made twice: reads and deletions by nature, a creation because its name is the request's.
        """
        import urllib3
        from kubernetes.client import ApiException

        for wait in (*_WAITS_SECONDS, None):
            try:
                return finish(
                    self._client.call_api(
                        path,
                        method,
                        path_params={"namespace": self.namespace},
                        auth_settings=["BearerToken"],
                        _return_http_data_only=True,
                        _request_timeout=self.timeout_seconds,
                        **options,
                    )
                )
            except ApiException as error:
                if error.status in accept:
                    return None
                if error.status not in _BUSY:
                    self._refuse(error, status_message(error))
                problem, wanted = f"{error.status} {error.reason}", _retry_after(error)
            except urllib3.exceptions.HTTPError as error:
                problem, wanted = str(error), 0.0
            if wait is not None:
                log.info("the cluster does not answer; asking again", where=self.where, problem=problem)
                time.sleep(min(max(wait, wanted), _LONGEST_WAIT_SECONDS))
        raise self.unavailable(f"the cluster does not answer: {problem}", where=self.where, hint="try again later")

    def _refuse(self, error: Any, message: str) -> NoReturn:
        if error.status in NOT_ALLOWED:
            hint = f"this account needs: {self._needs}"
            raise ConfigError(f"the cluster does not allow it: {message}", where=self.where, hint=hint) from error
        raise ConfigError(f"the cluster refuses it: {message}", where=self.where) from error


def open_client(context: str | None) -> Any:
    """The official client's `ApiClient`, which asks each thing once.

    Args:
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.

    Raises:
        Unsupported: The client is not installed in this interpreter.
        ConfigError: There is no such context, or no kubeconfig.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        problem = "this needs the Kubernetes client, which is not installed in this interpreter"
        raise Unsupported(problem, hint="pip install 'llm-pipeline[kubernetes]'") from error
    configuration = client.Configuration()
    try:
        if context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(os.environ.get("KUBECONFIG"), context, client_configuration=configuration)
    except config.ConfigException as error:
        raise ConfigError(
            f"no way to the cluster: {error}",
            where=f"context {context}" if context else "",
            hint="set KUBECONFIG, name a context of it, or run in a pod with a service account",
        ) from error
    configuration.retries = False  # its callers try again
    return client.ApiClient(configuration)


def status_message(error: Any) -> str:
    """The `Status` object's message, which tells what is wrong with which field."""
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"


def _retry_after(error: Any) -> float:
    value = (error.headers or {}).get("Retry-After", "0")
    return float(value) if value.isdecimal() else 0.0
