"""What serves as Airflow's assets: a DAG of one's own runs when a model went live at a place, or came back there.

    with DAG("announce", schedule=live_model("prod", "org/model", "h100")): ...

An event's `extra` says what happened and what serves now; see `event_extra`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Asset, AssetAlias

from llm_pipeline.base.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.config.deployment import Deployment
    from llm_pipeline.store import ArtifactStore

Happened = Literal["promoted", "rolled back"]

ROLLBACKS = AssetAlias("llm-rollbacks", group="llm-release")
"""Where a rollback's event goes first: only where there was one does it reach the place's asset."""


def live_model(deployment: str, model: str, place: str) -> Asset:
    """The asset of what serves a model at a place of a deployment."""
    uri = f"llm://{deployment}/{model}/{place}"
    return Asset(name=uri, uri=uri, group="llm-release")


def tell_rollback(context: Context, deployment: Deployment, store: ArtifactStore, place: str) -> None:
    """Add an event to the asset of a place, where a release was rolled back."""
    from llm_pipeline.store.place_state import read_place

    asset = live_model(deployment.name, read_place(store, place).model_id, place)
    context["outlet_events"][ROLLBACKS].add(asset, extra=event_extra(store, place, "rolled back"))


def event_extra(store: ArtifactStore, place: str, happened: Happened) -> dict[str, Any]:
    """What an event says: what happened, and the release that serves now with its commit, recipe and metrics."""
    from llm_pipeline.release.record import read_release_record
    from llm_pipeline.release_progress import ReleaseProgress
    from llm_pipeline.store.place_state import read_place

    serving = read_place(store, place).production
    if serving is None:
        return {"happened": happened, "release": None}
    extra: dict[str, Any] = {"happened": happened, "release": serving.release_id, "recipe": serving.recipe}
    try:
        flow = ReleaseProgress(store, read_release_record(store, serving.release_id))
    except ConfigError:  # somebody removed its record
        return extra
    target = flow.record.target_at(place)
    gates = {"accuracy": flow.find("accuracy", serving.recipe), "load_test": flow.find("load_test", target)}
    metrics = {name: dict(result.metrics) for name, result in gates.items() if result is not None}
    return extra | {"commit": flow.record.model.commit, "metrics": metrics}
