"""What the release watch writes into the store: which run took up a commit, and what the watch decided.

watch/<config>/<commit>.json   the run that released the commit: written once, by compare-and-swap
watch/<config>.json            the last decision, for people
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import AwareDatetime

from llm_pipeline.config.model import ConfigModel
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.signed_documents import replace_document

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ANEW = "remove the document"


class Claim(ConfigModel):
    """The run that released a commit.

    Attributes:
        run: Its id in Airflow, after its DAG's: no other run may release the commit because of the watch.
        cause: What started the run.
        content: Digest of the commit's files that count.
    """

    commit: str
    content: str
    run: str
    cause: Literal["watch", "schedule", "manual"]
    claimed_at: AwareDatetime


class WatchStatus(ConfigModel):
    """What a watch decided last.

    Attributes:
        commit: What the revision named; empty before the first answer of the hub.
        words: The decision, for people.
        since: When it was decided.
        checked_at: A time at which it still held; written now and then, not at every look.
    """

    config: str
    model: str
    revision: str
    commit: str
    words: str
    since: AwareDatetime
    checked_at: AwareDatetime


def claim_commit(store: ArtifactStore, config: str, claim: Claim) -> Claim:
    """Claim a commit for a run, and return the claim that holds: this one, or the one that came first.

    Raises:
        IntegrityError: The claim in the store cannot be understood.
        Transient: The store cannot be used now.
    """
    try:
        store.write_document(claim_name(config, claim.commit), claim.model_dump(mode="json"), None)
    except Conflict:
        known = read_claim(store, config, claim.commit)
        if known is None:
            raise
        return known
    return claim


def read_claim(store: ArtifactStore, config: str, commit: str) -> Claim | None:
    """Which run released a commit; None when none did.

    Raises:
        IntegrityError: The claim in the store cannot be understood.
    """
    return store.read_as(claim_name(config, commit), Claim, hint=_ANEW)[0]


def read_claims(store: ArtifactStore, config: str) -> list[Claim]:
    """All commits that runs of a release config released, the oldest first.

    Raises:
        IntegrityError: A claim in the store cannot be understood.
    """
    prefix = f"watch/{config}/"
    names = [name for name in store.list_documents(prefix) if name.startswith(prefix)]
    commits = [stem for name in names if _COMMIT.fullmatch(stem := name.removeprefix(prefix).removesuffix(".json"))]
    claims = [claim for commit in commits if (claim := read_claim(store, config, commit)) is not None]
    return sorted(claims, key=lambda claim: claim.claimed_at)


def claim_name(config: str, commit: str) -> str:
    """Name of a claim in the store."""
    return f"watch/{config}/{commit}.json"


def write_status(store: ArtifactStore, status: WatchStatus) -> None:
    """Write what a watch decided.

    Raises:
        Transient: The store cannot be used now.
    """
    replace_document(store, _status_name(status.config), status.model_dump(mode="json"))


def read_status(store: ArtifactStore, config: str) -> WatchStatus | None:
    """What a watch decided last; None before its first decision.

    Raises:
        IntegrityError: The document cannot be understood.
    """
    return store.read_as(_status_name(config), WatchStatus, hint=_ANEW)[0]


def _status_name(config: str) -> str:
    return f"watch/{config}.json"
