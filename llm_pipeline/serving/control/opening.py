"""From a place in the configuration to the control of its server; only the kind that is used is imported."""

from __future__ import annotations

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import DockerServer, KubernetesServer, LocalServer, ServerPlace
from llm_pipeline.config.server_ports import ServerPorts
from llm_pipeline.serving.control.server import ServerControl, StagingSlot
from llm_pipeline.serving.kubernetes_manifests.released import staging_name, workload_endpoint
from llm_pipeline.serving.ports import LOOPBACK


def open_control(place: ServerPlace, slot: StagingSlot) -> ServerControl:
    """The control of the server of a place. Nothing is started, and nobody is asked, yet."""
    if isinstance(place, LocalServer):
        from llm_pipeline.serving.control.local import LocalControl

        return LocalControl(place, slot)
    if isinstance(place, DockerServer):
        from llm_pipeline.serving.control.docker import DockerControl

        return DockerControl(place, slot)
    if isinstance(place, KubernetesServer):
        from llm_pipeline.serving.control.kubernetes import KubernetesControl

        return KubernetesControl(place, slot)
    from llm_pipeline.serving.control.existing import ExistingControl

    return ExistingControl(place, slot)


def endpoint_of(place: ServerPlace, *, release_name: str, target_name: str) -> Endpoint:
    """Where the server of a place answers, whether it runs or not.

    Args:
        place: The place.
        release_name: Name of the release config, by which a Service of a cluster is named.
        target_name: Name of the target, likewise.
    """
    if isinstance(place, ServerPorts):
        return loopback_endpoint(place)
    if isinstance(place, KubernetesServer):
        return place.endpoint or _service_endpoint(place, release_name, target_name)
    return place.endpoint


def loopback_endpoint(ports: ServerPorts) -> Endpoint:
    """The endpoint of a server on loopback ports of this host."""
    return Endpoint(
        url=f"http://{LOOPBACK}:{ports.http}",
        grpc=f"{LOOPBACK}:{ports.grpc}",
        metrics_url=f"http://{LOOPBACK}:{ports.metrics}/metrics",
    )


def _service_endpoint(place: KubernetesServer, release_name: str, target_name: str) -> Endpoint:
    ports = place.manifests.ports
    host = f"{workload_endpoint(staging_name(release_name), target_name)}.{place.manifests.namespace}.svc"
    return Endpoint(
        url=f"http://{host}:{ports.http}",
        grpc=f"{host}:{ports.grpc}",
        metrics_url=f"http://{host}:{ports.metrics}/metrics",
    )
