"""Running trials for real: build and package a target with other settings, stage it, and run the load gate's search.

Everything goes through the stages that a release goes through, under a release id of its own, so that equal settings
are never built twice and nothing of the release itself changes.
"""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path

from llm_pipeline.base.errors import RemoteStageError, StageCrashed, Transient, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch
from llm_pipeline.config.target import Target
from llm_pipeline.flow import ReleaseProgress, placement
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.outcome import WindowSummary
from llm_pipeline.loadtest.session import highest_passed, search, warm_up
from llm_pipeline.loadtest.token_counter import open_counter
from llm_pipeline.loadtest.windows import Windows
from llm_pipeline.loadtest.workload import TrafficSource
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.datasets import PROMPTS_DATASET
from llm_pipeline.runners.runner import StageRunner
from llm_pipeline.serving.control.server import Candidate, StagedServer, StagingSlot, open_control
from llm_pipeline.serving.repository_links import fetch_links
from llm_pipeline.serving.triton_server import ServerFailed
from llm_pipeline.tuning.sweep import Settings, Trial, Trouble, knobs_of, with_settings

_OUT_OF_MEMORY = re.compile(
    r"out of (GPU |host )?memory|OutOfMemory|bad_alloc|cannot allocate memory|CUDA_ERROR_OUT_OF_MEMORY|exit code -9"
    r"|SIGKILL|for host memory",
    re.IGNORECASE,
)
_PREEMPTED = re.compile(r"preempt|evict|paused request|no free (kv )?blocks|kv cache is full", re.IGNORECASE)
_FULL = 0.98
_CEILING_SECONDS = 10.0
_REQUESTS_A_USER = 200
_RESOLUTION = 0.1
_POLL_SECONDS = 0.1
_OF_THE_SETTINGS = frozenset({"BuildFailed", "OutOfMemory"})
"""Errors of a build that the settings may have caused; any other ends the sweep."""

log = get_logger(__name__)


def trouble_in_text(text: str) -> Trouble:
    """The trouble that a failure's text names."""
    if _OUT_OF_MEMORY.search(text):
        return "out of memory"
    return "preemption" if _PREEMPTED.search(text) else "failed"


def trouble_in_window(window: WindowSummary) -> tuple[Trouble, str] | None:
    """The trouble of a window in which requests failed, and the sign of it; None when none failed."""
    if not window.failed:
        return None
    use = window.server.kv_cache_fraction
    if use is not None and use >= _FULL:
        return "preemption", f"the KV cache was full, and {window.failed} of {window.requests} requests failed"
    return trouble_in_text(window.fault_detail), window.fault_detail


class TrialBench:
    """Measures settings of one target of a release that was packaged before.

    Args:
        flow: The release.
        target: The target's name.
        runner: Runs stages.

    Raises:
        Unsupported: The target is staged on a server that somebody else starts.
    """

    def __init__(self, flow: ReleaseProgress, target: str, runner: StageRunner) -> None:
        if not flow.place(target).staging.takes_settings:
            raise Unsupported(
                f"the staging server of {target} is somebody else's, and takes no settings from here",
                hint="tune at a place whose staging server is started from here",
            )
        self._flow, self._runner = flow, runner
        self.target: Target = flow.release.target(target)
        self.knobs = knobs_of(self.target, most_threads=os.cpu_count() or 1)

    def measure(self, settings: Settings) -> Trial:
        """Run one trial.

        Raises:
            PipelineError: It failed for a reason that no setting changes.
        """
        try:
            target = with_settings(self.target, settings)
            trial = self._served(target, self._package(target), dict(settings))
        except (ServerFailed, StageCrashed, RemoteStageError) as failure:
            if isinstance(failure, RemoteStageError) and failure.document.type not in _OF_THE_SETTINGS:
                raise
            trial = Trial(dict(settings), trouble=trouble_in_text(str(failure)), detail=failure.message)
        turned = ", ".join(f"{path} {value}" for path, value in settings.items())
        log.info("trial", settings=turned, holds=trial.highest_rate_per_second, trouble=trial.trouble or "none")
        return trial

    def _package(self, target: Target) -> ArtifactRef:
        engine = self._run(self._request("build", target)).artifacts["engine"]
        request = self._request("package", target)
        return self._run(request.model_copy(update={"inputs": {**request.inputs, "engine": engine}})).artifacts[
            "repository"
        ]

    def _request(self, stage: str, target: Target) -> StageRequest:
        release = self._flow.release
        targets = tuple(target if known.name == target.name else known for known in release.targets)
        record = self._flow.record.model_copy(update={"release": release.model_copy(update={"targets": targets})})
        request = ReleaseProgress(self._flow.store, record, trusts_signed_only=True).request(stage, target.name)
        return request.model_copy(update={"release_id": self.release_id})

    @property
    def release_id(self) -> str:
        """The release id under which the stages of the trials run."""
        return f"tuning-{self._flow.record.release_id}"

    def _run(self, request: StageRequest) -> StageResult:
        job = self._runner.submit(request, placement(request))
        while self._runner.is_active(job):
            time.sleep(_POLL_SECONDS)
        return self._runner.outcome(job)

    def _served(self, target: Target, repository: ArtifactRef, settings: dict[str, int | float | str]) -> Trial:
        deployment, store = self._flow.deployment, self._flow.store
        directory = store.fetch(repository)
        slot = StagingSlot(
            state=Path(self._flow.state_directory(target.name, "staging")),
            release_name=self._flow.release.name,
            target=target,
            triton_home=Path(deployment.triton_home),
            python=Path(deployment.serving_interpreter(self._flow.record.place_of(target.name))),
        )
        control = open_control(self._flow.place(target.name).staging, slot)
        candidate = Candidate(directory, repository.digest, links=fetch_links(directory, store))
        wait = self._flow.release.policy.staging.ready_timeout_seconds
        server = control.start(candidate, wait_seconds=wait)
        try:
            return self._measured(server, directory, target, settings)
        finally:
            control.stop()

    def _measured(
        self, server: StagedServer, repository: Path, target: Target, settings: dict[str, int | float | str]
    ) -> Trial:
        workload, policy = self._flow.release.workload, _searching(self._flow.release.policy.load_test)
        prompts = self._flow.store.fetch(self._flow.record.datasets[PROMPTS_DATASET])
        source = TrafficSource(
            workload, prompts, count_tokens=open_counter(repository, fetch_links(repository, self._flow.store))
        )
        with LoadClient(server.endpoint) as client:
            windows = Windows(client, source, workload, policy)
            users = target.limits.maximum_sequences
            warm_up(windows, users)
            windows.closed("ceiling", users, _CEILING_SECONDS, most=users * _REQUESTS_A_USER)
            first = windows.open("target", "target", workload.rate_per_second, workload.duration_seconds)
            at_target = windows.summaries[-1]
            if (found := trouble_in_window(at_target)) is not None:
                trouble, detail = found
                return Trial(settings, good_per_second=at_target.good_per_second, trouble=trouble, detail=detail)
            highest = highest_passed(search(windows, first))
        return Trial(settings, highest or 0.0, at_target.good_per_second)

    def forget(self) -> None:
        """Remove the documents of the trials; what they built stays in the store until the retention takes it."""
        for name in self._flow.store.list_documents(f"releases/{self.release_id}"):
            try:
                self._flow.store.delete_document(name)
            except Transient as error:
                log.warning("a trial's document is left", document=name, reason=error.message)


def _searching(policy: LoadTestPolicy) -> LoadTestPolicy:
    """The policy with a search up to the server's limit: a rate that all settings sustain ranks none of them."""
    search = policy.search or RateSearch()
    finer = {"maximum_multiple": math.inf, "resolution": min(search.resolution, _RESOLUTION)}
    search = search.model_copy(update=finer)
    return policy.model_copy(update={"search": search})
