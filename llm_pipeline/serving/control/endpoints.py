"""Where the servers of places answer."""

from __future__ import annotations

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import KubernetesServer, ServerPlace
from llm_pipeline.config.server_ports import ServerPorts
from llm_pipeline.serving.kubernetes_manifests.released import staging_name, workload_endpoint
from llm_pipeline.serving.ports import loopback_endpoint


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


def _service_endpoint(place: KubernetesServer, release_name: str, target_name: str) -> Endpoint:
    ports = place.manifests.ports
    host = f"{workload_endpoint(staging_name(release_name), target_name)}.{place.manifests.namespace}.svc"
    return Endpoint(
        url=f"http://{host}:{ports.http}",
        grpc=f"{host}:{ports.grpc}",
        metrics_url=f"http://{host}:{ports.metrics}/metrics",
    )
