"""The report stage: one self-contained HTML page (and its Markdown and JSON) of all that a release has so far."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.release.contract import Stage, StageContext, StageOutput

if TYPE_CHECKING:
    from llm_pipeline.flow import ReleaseProgress

log = get_logger(__name__)


def report_name(release_id: str, suffix: str = "html") -> str:
    """Name of a release's report in the store."""
    return f"releases/{release_id}/report.{suffix}"


class ReportConfig(ConfigModel):
    """A report reads the release's record and results, nothing else."""


def run(context: StageContext[ReportConfig]) -> StageOutput:
    """Collect, render and write the report."""
    from llm_pipeline.reporting.collect import collect
    from llm_pipeline.reporting.html import render_report
    from llm_pipeline.reporting.markdown import render_markdown

    clock = time.monotonic()
    release_id = context.request.release_id
    data = collect(context.store, release_id)
    html = render_report(data).encode()
    context.store.write_file(report_name(release_id), html)
    context.store.write_file(report_name(release_id, "md"), render_markdown(data).encode())
    context.store.write_file(report_name(release_id, "json"), data.model_dump_json(indent=1).encode())
    where = f"{context.store.uri}/{report_name(release_id)}"
    log.info("report written", file=where, kilobytes=len(html) / 1e3)
    return StageOutput(metrics={"report": where, "bytes": len(html)}, tool_seconds=time.monotonic() - clock)


def request(_flow: ReleaseProgress, _subject: str) -> tuple[ReportConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    return ReportConfig(), {}


STAGE = Stage(
    name="report",
    version=1,
    config=ReportConfig,
    request=request,
    run=run,
    environment="control",
    publishes=False,
    reusable=False,
)
