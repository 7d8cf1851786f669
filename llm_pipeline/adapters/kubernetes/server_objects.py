"""The calls to a Kubernetes API server that a staging server needs: its workload, its Service, its pods and their logs.

Objects are plain manifests, so that a Deployment and a LeaderWorkerSet, which the client has no type for, are alike.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import Any, ClassVar

from llm_pipeline.adapters.kubernetes.api import Cluster
from llm_pipeline.adapters.kubernetes.state import PodState, pod_state

Manifest = dict[str, Any]

_NOT_FOUND, _CONFLICT, _BAD_REQUEST = 404, 409, 400
_RESOURCES = {
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets",
    "Service": "/api/v1/namespaces/{namespace}/services",
}
_TAIL = 200


class ServingCluster(Cluster):
    """One cluster, in one namespace, as server control uses it."""

    NEEDS: ClassVar[str] = (
        "create, get and delete Deployments (LeaderWorkerSets for servers over several nodes) and Services; "
        "list Pods; get pods/log"
    )

    def create(self, manifest: Manifest) -> bool:
        """Create an object; False when one of that name is there.

        Raises:
            ConfigError: The server refuses it.
            Transient: The server cannot be reached, or is too busy.
        """
        made = self._object("POST", manifest["kind"], body=manifest, accept=(_CONFLICT,))
        return made is not None

    def read(self, kind: str, name: str) -> Manifest | None:
        """An object by its kind and name."""
        return self._object("GET", kind, name)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and what it owns before it, if there is one."""
        self._object("DELETE", kind, name, body={"propagationPolicy": "Foreground"})

    def pods_with(self, labels: dict[str, str]) -> list[Any]:
        """Pods with these labels, as the client's `V1Pod`."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        return list(self._call(self._core.list_namespaced_pod, self._namespace, label_selector=selector).items)

    def pod_states(self, labels: dict[str, str]) -> list[PodState]:
        """The same, as far as waiting for them goes; one whose init containers wait has not started."""
        return [_with_init_containers(pod) for pod in self.pods_with(labels)]

    def last_log(self, pod: str, container: str, *, previous: bool) -> str:
        """The end of a container's log, of its run before if it was started again; empty where there is none."""
        answer: bytes | None = self._call(
            self._core.read_namespaced_pod_log,
            pod,
            self._namespace,
            container=container,
            previous=previous,
            tail_lines=_TAIL,
            _preload_content=False,  # the client would give the text of its bytes, as Python writes it
            finish=attrgetter("data"),
            accept=(_NOT_FOUND, _BAD_REQUEST),
        )
        return answer.decode(errors="replace") if answer else ""

    def _object(
        self, method: str, kind: str, name: str = "", *, body: Manifest | None = None, accept: tuple[int, ...] = ()
    ) -> Manifest | None:
        found: Manifest | None = self._call(
            self._client.call_api,
            _RESOURCES[kind] + (f"/{name}" if name else ""),
            method,
            path_params={"namespace": self._namespace},
            query_params=[("fieldValidation", "Strict")] if method == "POST" else [],
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            response_types_map={200: "object", 201: "object", 202: "object"},
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            accept=(_NOT_FOUND, *accept) if method != "POST" else accept,
        )
        return found


def _with_init_containers(pod: Any) -> PodState:
    state = pod_state(pod)
    for status in pod.status.init_container_statuses or ():
        if waiting := status.state and status.state.waiting:
            return dataclasses.replace(state, started=False, waiting=(waiting.reason or "", waiting.message or ""))
    return state
