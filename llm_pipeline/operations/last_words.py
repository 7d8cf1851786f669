"""The last words of `llm-pipeline run`: what it came to, who serves now, how to ask, and where the report is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llm_pipeline.artifacts.endpoint_description import EndpointDescription
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.slots import slot_state
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.server_place import OpenAiSlot
from llm_pipeline.inspection.table import labelled
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store.places import Serving, serving_at

_PROMPT, _TOKENS = "Hello", 32
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
            server = find_server(slot_state(Path(flow.deployment.state_root), place, serving.pointer.slot))
            facts.append(("ask it", curl_line(flow.deployment.places[place], server.about if server else None)))
    report = flow.find("report")
    facts.append(("report", _readable(str(report.metrics.get("report", ""))) if report else ""))
    yield f"{release_id}: {verdict}{verdict.see}"
    yield from (f"  {line}" for line in labelled(facts))


def curl_line(place: TargetPlace, spoken: EndpointDescription | None) -> str:
    """A command that asks what a place's users ask; it can be pasted where the router's address is known.

    Args:
        place: The place.
        spoken: What is said of the model of our own server there; None where none is known.
    """
    address = place.router.users_url()
    if not address:
        return f"curl -sS -i https://YOUR-ROUTE{_question(place, spoken)}"
    certificate = place.router.users_certificate()
    trusted = f" --cacert {shlex.quote(certificate)}" if certificate else ""
    return f"{_CURL}{trusted} {address}{_question(place, spoken)}"


def curl_line_at(address: str) -> str:
    """The same of the address of one of our servers."""
    return f"{_CURL} {address}{_asked('completions', None, {'prompt': _PROMPT})}"


def _question(place: TargetPlace, spoken: EndpointDescription | None) -> str:
    if spoken is not None and spoken.chat.template is not None:
        return _asked("chat/completions", spoken.model, {"messages": [{"role": "user", "content": _PROMPT}]})
    if isinstance(place.blue, OpenAiSlot):
        model = place.blue.endpoint.openai_model
    else:
        model = None if spoken is None else spoken.model
    return _asked("completions", model, {"prompt": _PROMPT})


def _asked(route: str, model: str | None, what: Mapping[str, object]) -> str:
    body = json.dumps({**({"model": model} if model else {}), **what, "max_tokens": _TOKENS})
    return f"/v1/{route} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


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
