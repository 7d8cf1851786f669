"""What the stages read that act on a place's slots and router."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llm_pipeline.canary.router import SlotName, TrafficRouter, all_to, open_router
from llm_pipeline.canary.slots import RECOGNISED, SlotControl, open_slots
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.model import ConfigModel, Name
from llm_pipeline.config.release import Drill
from llm_pipeline.stages.request_parts import server_software

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress
    from llm_pipeline.store import ArtifactStore


class PlaceConfig(ConfigModel):
    """What every stage reads that acts on a place's servers and router.

    Attributes:
        model_id: `organisation/name` on the hub.
        target: Name of the deployment's place: the target's own, unless the release config names another.
        place: The slots and the router.
        state_root: Directory of the running servers' state.
        triton_home: Directory with the unpacked nvidia-pytriton wheel.
        python: Interpreter of the model's code in Triton.
    """

    model_id: str
    target: Name
    place: TargetPlace
    state_root: Path
    triton_home: Path
    python: Path

    @classmethod
    def of(cls, flow: ReleaseProgress, target: str, **more: Any) -> Self:
        """What a stage of a release reads of a target's place, and what it reads besides."""
        return cls(
            model_id=flow.record.model.id,
            target=flow.record.place_of(target),
            place=flow.place(target),
            state_root=flow.deployment.state_root,
            **server_software(flow, target),
            **more,
        )

    @property
    def router_state(self) -> Path:
        """Directory of the router's state."""
        return self.state_root / self.target / "router"

    def open_router(self, slot: SlotName, owner: str) -> TrafficRouter:
        """The place's router; one that is not there yet starts with all traffic on a slot."""
        initial = all_to(slot, owner=owner, epoch=0)
        return open_router(self.place.router, self.place.slots, self.router_state, initial=initial)

    def slots(self, store: ArtifactStore, drill: Drill | None = None, *, recognised: float = RECOGNISED) -> SlotControl:
        """What controls the servers of the place's slots.

        Args:
            store: Where the repositories are.
            drill: A fault for the candidate's server.
            recognised: Share of a release's golden answers that a server must give that was started elsewhere.
        """
        return open_slots(
            store,
            self.place,
            self.target,
            self.state_root,
            triton_home=self.triton_home,
            python=self.python,
            drill=drill,
            recognised=recognised,
        )
