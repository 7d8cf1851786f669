"""The settings of a staging server of kind `kubernetes`, and what opens it."""

from __future__ import annotations

from typing import ClassVar, Literal

from llm_pipeline.base.adapters import OnCall
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.model import Word
from llm_pipeline.config.server_place import ServerModel
from llm_pipeline.serving.server_adapter import ServerAdapter


class KubernetesServer(ServerModel):
    """Pods of a cluster, by the manifests that `llm-pipeline render` writes, and gone after the run.

    Attributes:
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
        manifests: How the release is served there. Staging has one server, and no autoscaler.
        endpoint: How the workers reach the Service `llm-<release config>-staging-<target>-endpoint` from outside the
            cluster, through a gateway of yours; None where they resolve the names of its Services.
    """

    fetches_release: ClassVar[bool] = True

    kind: Literal["kubernetes"]
    context: Word | None = None
    manifests: ServingManifestOptions = ServingManifestOptions()
    endpoint: Endpoint | None = None


_SERVER = "llm_pipeline.adapters.kubernetes.server"
ADAPTER = ServerAdapter(
    config=KubernetesServer,
    open=OnCall(f"{_SERVER}:KubernetesControl"),
    probe=OnCall(f"{_SERVER}:probe"),
    endpoint=OnCall(f"{_SERVER}:service_endpoint"),
)
