"""The few calls to a Kubernetes API server that the runner makes, tried again while the server is busy.

The runner looks at the state again and again and holds no watch: nothing is missed when a connection drops, and a
worker that takes over needs nothing from the one before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, NoReturn

from llm_pipeline.adapters.kubernetes.job import CONTAINER, DIGEST_ANNOTATION, JOB_LABEL
from llm_pipeline.adapters.kubernetes.state import JobState, PodState, job_state, pod_state
from llm_pipeline.base.errors import ConfigError, Transient, Unsupported
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_TIMEOUT_SECONDS = (5.0, 60.0)  # to connect, to wait for an answer
_WAITS_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0)
_LONGEST_WAIT_SECONDS = 15.0
_NOT_FOUND, _CONFLICT, _BAD_REQUEST = 404, 409, 400
_BUSY = (429, 500, 502, 503, 504)
_NOT_ALLOWED = (401, 403)


class Cluster:
    """One cluster, in one namespace.

    Args:
        namespace: Where Jobs are made.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
    """

    NEEDS: ClassVar[str] = "create, get, list and delete Jobs; list and delete Pods; get pods/log"

    def __init__(self, namespace: str, context: str | None) -> None:
        self._namespace = namespace
        self._where = f"namespace {namespace}" + (f" of {context}" if context else "")
        self._client = open_client(context)
        from kubernetes import client

        self._batch = client.BatchV1Api(self._client)
        self._core = client.CoreV1Api(self._client)

    def create_job(self, manifest: dict[str, Any]) -> bool:
        """Create a Job; False when one of that name is there.

        Raises:
            ConfigError: The server refuses it.
            Transient: The server cannot be reached, or is too busy.
        """
        made = self._call(
            self._batch.create_namespaced_job,
            self._namespace,
            manifest,
            field_validation="Strict",
            accept=(_CONFLICT,),
        )
        return made is not None

    def job(self, name: str) -> JobState | None:
        """The Job of that name."""
        found = self._call(self._batch.read_namespaced_job, name, self._namespace, accept=(_NOT_FOUND,))
        return job_state(found, DIGEST_ANNOTATION) if found else None

    def jobs(self, selector: str) -> list[JobState]:
        """The Jobs with these labels."""
        found = self._call(self._batch.list_namespaced_job, self._namespace, label_selector=selector)
        return [job_state(job, DIGEST_ANNOTATION) for job in found.items]

    def delete_job(self, name: str) -> None:
        """Delete a Job, and its pod with it, if there is one."""
        self._call(
            self._batch.delete_namespaced_job,
            name,
            self._namespace,
            propagation_policy="Foreground",
            accept=(_NOT_FOUND,),
        )

    def pods(self, job_name: str) -> list[PodState]:
        """The pods of a Job, the newest last; also those that an owner's deletion left behind."""
        selector = f"{JOB_LABEL}={job_name}"
        found = self._call(self._core.list_namespaced_pod, self._namespace, label_selector=selector)
        return sorted((pod_state(pod) for pod in found.items), key=lambda pod: pod.created_at)

    def delete_pod(self, name: str) -> None:
        """Delete a pod, if there is one."""
        self._call(self._core.delete_namespaced_pod, name, self._namespace, accept=(_NOT_FOUND,))

    def log(self, pod_name: str, *, since_time: str | None = None, last_lines: int | None = None) -> str:
        """A pod's log, each line with its time stamp; empty while there is none."""
        query = [("container", CONTAINER), ("timestamps", "true")]
        query += [("sinceTime", since_time)] if since_time else []  # the generated client has no argument for it
        query += [("tailLines", str(last_lines))] if last_lines else []
        answer = self._call(
            self._client.call_api,
            "/api/v1/namespaces/{namespace}/pods/{name}/log",
            "GET",
            path_params={"namespace": self._namespace, "name": pod_name},
            query_params=query,
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            accept=(_NOT_FOUND, _BAD_REQUEST),  # the pod is gone, or its container waits
            finish=attrgetter("data"),
        )
        return answer.decode(errors="replace") if answer else ""

    def events(self, name: str) -> tuple[str, ...]:
        """What the cluster says about an object, the newest last; nothing where that may not be read."""
        try:
            found = self._call(
                self._core.list_namespaced_event, self._namespace, field_selector=f"involvedObject.name={name}"
            )
        except ConfigError:
            return ()
        return tuple(f"{event.reason}: {event.message}" for event in found.items)[-3:]

    def _call(
        self,
        function: Callable[..., Any],
        *args: Any,
        accept: tuple[int, ...] = (),
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
                return finish(function(*args, _request_timeout=_TIMEOUT_SECONDS, **options))
            except ApiException as error:
                if error.status in accept:
                    return None
                if error.status not in _BUSY:
                    self._refuse(error)
                problem, wanted = f"{error.status} {error.reason}", _retry_after(error)
            except urllib3.exceptions.HTTPError as error:
                problem, wanted = str(error), 0.0
            if wait is not None:
                log.info("the cluster does not answer; asking again", where=self._where, problem=problem)
                time.sleep(min(max(wait, wanted), _LONGEST_WAIT_SECONDS))
        raise Transient(f"the cluster does not answer: {problem}", where=self._where, hint="try again later")

    def _refuse(self, error: Any) -> NoReturn:
        message = status_message(error)
        if error.status in _NOT_ALLOWED:
            hint = f"this account needs: {self.NEEDS}"
            raise ConfigError(f"the cluster does not allow it: {message}", where=self._where, hint=hint) from error
        raise ConfigError(f"the cluster refuses it: {message}", where=self._where) from error


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
        raise Unsupported(
            "this needs the Kubernetes client, which is not installed in this interpreter",
            hint="pip install 'llm-pipeline[kubernetes]'",
        ) from error
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
