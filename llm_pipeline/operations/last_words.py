"""The last words of `llm-pipeline run`: what it came to, who serves now, how to ask, and where the report is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.server_place import OpenAiSlot
from llm_pipeline.inspection.table import labelled
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.places import Serving, serving_at

_EXAMPLE = {"text_input": "Hello", "max_tokens": 32}
_CURL = "curl -sS -i --noproxy '*'"
"""Our own servers are never asked through a proxy, which would look for a loopback address on its own host."""


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
            facts.append(("ask it", curl_line(flow.deployment.places[place])))
    report = flow.find("report")
    facts.append(("report", _readable(str(report.metrics.get("report", ""))) if report else ""))
    yield f"{release_id}: {verdict}{verdict.see}"
    yield from (f"  {line}" for line in labelled(facts))


def curl_line(place: TargetPlace) -> str:
    """A command that asks what a place's users ask; it can be pasted where the router's address is known."""
    openai_model = place.blue.endpoint.openai_model if isinstance(place.blue, OpenAiSlot) else None
    address = place.router.users_url()
    if not address:
        return _curl("curl -sS -i", "https://YOUR-ROUTE", openai_model)
    certificate = place.router.users_certificate()
    trusted = f" --cacert {shlex.quote(certificate)}" if certificate else ""
    return _curl(f"{_CURL}{trusted}", address, openai_model)


def curl_line_at(address: str) -> str:
    """The same of a Triton's address."""
    return _curl(_CURL, address)


def _curl(command: str, address: str, openai_model: str | None = None) -> str:
    if openai_model is None:
        body = shlex.quote(json.dumps(_EXAMPLE))
        return f"{command} {address}/v2/models/{MODEL_NAME}/generate -d {body}"
    body = shlex.quote(json.dumps({"model": openai_model, "prompt": _EXAMPLE["text_input"], "max_tokens": 32}))
    return f"{command} {address}/v1/completions -H 'Content-Type: application/json' -d {body}"


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
