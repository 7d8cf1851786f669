"""The last words of `llm-pipeline run`: what it came to, who serves now, how to ask, and where the report is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.router_place import RouterModel
from llm_pipeline.flow import ReleaseProgress
from llm_pipeline.inspection.table import labelled
from llm_pipeline.store.places import Serving, serving_at

_EXAMPLE = {"text_input": "Hello", "max_tokens": 32}


def last_words(flow: ReleaseProgress, verdict: Verdict) -> Iterator[str]:
    """One line a fact, for people.

    Args:
        flow: The release.
        verdict: What it came to.
    """
    release_id = flow.record.release_id
    facts: list[tuple[str, str]] = []
    for place in dict.fromkeys(flow.record.place_of(target) for target in flow.targets):
        serving = serving_at(flow.store, place)
        facts.append((f"{place} serves", _who(serving, release_id)))
        if serving is not None:
            facts.append(("ask it", curl_line(flow.deployment.places[place].router)))
    report = flow.find("report")
    facts.append(("report", _readable(str(report.metrics.get("report", ""))) if report else ""))
    yield f"{release_id}: {verdict}"
    yield from (f"  {line}" for line in labelled(facts))


def curl_line(router: RouterModel) -> str:
    """A command that asks what a router's users ask; it can be pasted where the address is known."""
    certificate = router.users_certificate()
    trusted = f" --cacert {shlex.quote(certificate)}" if certificate else ""
    return curl_line_at(router.users_url() or "https://YOUR-ROUTE", trusted)


def curl_line_at(address: str, trusted: str = "") -> str:
    """The same of any server's address."""
    body = shlex.quote(json.dumps(_EXAMPLE))
    return f"curl -sS -i{trusted} {address}/v2/models/{MODEL_NAME}/generate -d {body}"


def _who(serving: Serving | None, release_id: str) -> str:
    if serving is None:
        return "nothing"
    pointer = serving.pointer
    known = "this release" if pointer.release_id == release_id else f"{pointer.release_id}, as before"
    return f"{known} ({serving.model_id}, {pointer.recipe}, in {pointer.slot})"


def _readable(uri: str) -> str:
    """A path where it is a file of this host."""
    parts = urlsplit(uri)
    return str(Path(unquote(parts.path))) if parts.scheme == "file" else uri
