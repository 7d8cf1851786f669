"""The watchdog: a canary without a controller loses its traffic. One pass checks every target of a deployment.

A canary whose controller was not heard of, one that waited for a person for too long, and one that a person denied
are rolled back; a rollback that was begun is completed. A router or a production server that has ended is started.
A slot that kept the version before warm is stopped when its rollback window ends, and started again within it once a
canary that had taken it was rolled back. The guard runs on the host of the target's servers, beside whatever else runs
there: it never interrupts a controller that renews its lease.

It needs no clock that agrees with anybody's (`sightings`), and no store that takes anything to move traffic to stable.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from llm_pipeline.base.host_time import HostTime
from llm_pipeline.canary.open_slots import slots_of
from llm_pipeline.canary.patience import Patience
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.operations.guarded_site import GuardAction, GuardedSite, failed
from llm_pipeline.operations.served_place import router_here
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.references import PlacedPointers, readable_pointers


def guard_once(store: ArtifactStore, deployment: Deployment, now: HostTime | None = None) -> list[GuardAction]:
    """One pass over the targets of a deployment. What fails at one target does not keep the others from being guarded.

    Args:
        store: The deployment's.
        deployment: Its places are guarded, whose servers must be on this host.
        now: On this host; None for the time it is.
    """
    now = now or HostTime.now()
    actions: list[GuardAction] = []
    models: list[PlacedPointers] = []
    try:
        models, damaged = readable_pointers(store)
        actions += [failed(PurePosixPath(one.name).stem, "-", one.error) for one in damaged]
    except Exception as error:  # noqa: BLE001 - canaries are guarded without them
        actions.append(failed("-", "-", error))
    sites: list[tuple[GuardedSite, list[str]]] = []
    for target, place in deployment.places.items():
        try:
            site = GuardedSite(
                store=store,
                target=target,
                router=router_here(deployment, target),
                slots=slots_of(store, deployment, target),
                patience=Patience.with_router(place.router),
            )
        except Exception as error:  # noqa: BLE001 - the other targets are guarded
            actions.append(failed(target, "-", error))
        else:
            sites.append((site, [placed.model_id for placed in models if placed.target == target]))
            actions += site.guard(now, sites[-1][1])
    for site, here in sites:
        actions += site.keep_warm(now, here)
    return actions
