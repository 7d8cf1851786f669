"""What the deployment's store tells of a release before it begins: what it will reuse, and how long the rest took.

A store that cannot be read is no error here: the plan only says less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.planning.background import BackgroundCall
from llm_pipeline.planning.history import History, read_history
from llm_pipeline.planning.model import Comparison
from llm_pipeline.planning.reuse import Step, StepReuse, foresee_reuse
from llm_pipeline.store import ArtifactStore


@dataclass(frozen=True)
class Foresight:
    """What is known of the steps.

    Attributes:
        history: Earlier releases; None where the store was not asked, or did not answer.
        reuse: What will become of each step; None as well.
        warnings: Why they are not known.
    """

    history: History | None = None
    reuse: Mapping[Step, StepReuse] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def compared_with(self) -> Comparison | None:
        """The earlier release whose commit was taken."""
        newest = self.history.newest if self.history else None
        if newest is None:
            return None
        return Comparison(release_id=newest.release_id, commit=newest.model.commit, resolved_at=newest.created_at)


def ask_store(
    loaded: LoadedRelease,
    opened: Callable[[], ArtifactStore],
    steps: Sequence[Step],
    ladders: Mapping[str, tuple[str, ...]],
) -> Foresight:
    """Read the store.

    Raises:
        Transient: It cannot be read now.
        ConfigError: There is no such store, or nobody may read it.
    """
    store = opened()
    history = read_history(store, loaded)
    return Foresight(history, foresee_reuse(store, history, loaded, steps, ladders))


def foresee(asked: BackgroundCall[Foresight] | None, deployment: Deployment) -> Foresight:
    """What the store has answered by now; a warning, where it has not."""
    if asked is None:
        return Foresight()
    try:
        return asked.answer()
    except (PipelineError, OSError) as error:
        uri = deployment.store.uri
        reason = error.message if isinstance(error, PipelineError) else str(error)
        return Foresight(warnings=(f"reuse and measured times are not known: {uri} cannot be read now: {reason}",))
