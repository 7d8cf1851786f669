"""What a report says of a canary that was taken back."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from llm_pipeline.reporting.collect import collect


def test_the_headline_says_what_was_caught_and_what_serves(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path, good=False)
    sample.point_at(release, ("before", "none"))
    sentence = collect(release.store, sample.RELEASE).headline.sentence
    assert sentence.startswith("Taken back on cpu at the 25 % step: Slow first tokens")
    assert sentence.endswith("Recipe none of release before serves.")
    shutil.rmtree(Path(urlsplit(release.store.uri).path) / "artifacts" / "canary")
    assert "Taken back on cpu: Slow first tokens" in collect(release.store, sample.RELEASE).headline.sentence


def test_a_rollback_without_confirmation_is_not_called_complete(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.add("rollback", "cpu", metrics={"phase": "rolled back", "traffic_confirmed": 0})
    assert "has not confirmed" in collect(release.store, sample.RELEASE).headline.sentence
