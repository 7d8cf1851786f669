"""Whether a human has to be asked about the model's licence before anything is fetched."""

from __future__ import annotations

from llm_pipeline.flow import Flow


def license_change_to_review(flow: Flow) -> str:
    """What changed in licence and gating since the release before; empty when nothing did, or nobody is to be asked."""
    if not flow.release.approval.on_license_change:
        return ""
    return str(flow.result("resolve").metrics.get("license_change") or "")
