"""The report stage: one self-contained HTML page (and its Markdown and JSON) of all that a release has so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.base.collector import sparing
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.release.record import report_name

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)


class ReportConfig(ConfigModel):
    """A report reads the release's record and results, nothing else."""


@sparing()  # figures of matplotlib are a million objects, and the process ends with them
def run(context: StageContext[ReportConfig]) -> StageOutput:
    """Collect, render and write the report."""
    from llm_pipeline.inspection.release_summaries import write_summary
    from llm_pipeline.reporting.collect import collect
    from llm_pipeline.reporting.html import render_report

    release_id = context.request.release_id
    data = collect(context.store, release_id)
    html = render_report(data).encode()
    context.store.write_file(report_name(release_id), html)
    context.store.write_file(report_name(release_id, "json"), data.model_dump_json(indent=1).encode())
    where = f"{context.store.uri}/{report_name(release_id)}"
    log.info("report written", file=where, kilobytes=len(html) / 1e3)
    try:
        write_summary(context.store, release_id)
    except PipelineError as error:  # the list reads its records instead
        log.warning("the summary for the list of releases is not written", reason=str(error))
    return StageOutput(metrics={"report": where, "bytes": len(html)})


def request(_flow: ReleaseProgress, _subject: str) -> tuple[ReportConfig, Inputs]:
    """What the stage is given."""
    return ReportConfig(), {}


STAGE = Stage(
    name="report", version=1, config=ReportConfig, request=request, run=run, publishes=False, changes_release=False
)
