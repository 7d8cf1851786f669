"""What a retention run keeps and removes, in real stores."""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from place_here import serve
from store_history import MODEL, TARGET, History

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.canary.record import Phase
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.kept_data_sets import kept_data_sets, remove_kept, using
from llm_pipeline.release.execute import read_stage_record
from llm_pipeline.retention import RetentionReport, collect_garbage
from llm_pipeline.store.place_state import read_place

STRICT = {"keep_releases": 1, "keep_days": 1.0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no power is cut here


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path, **STRICT)


def collect(history: History, *, delete: bool = True, days: float = 0.0) -> RetentionReport:
    history.pass_days(days)
    return collect_garbage(history.deployment, delete=delete, now=history.now)


def kept(history: History) -> set[str]:
    return {name.split("/")[1] for name in history.store.list_documents("releases") if name.endswith("/release.json")}


def is_whole(history: History, release_id: str) -> bool:
    refs = history.artifacts_of(release_id)
    return bool(refs) and not any(history.store.verify(ref) for ref in refs)


def reasons(report: RetentionReport, release_id: str) -> str:
    return "; ".join(why for one in report.kept if one.release_id == release_id for why in one.why)


def test_a_dry_run_changes_nothing_and_says_what_would_go_and_why(history: History):
    old, new = history.release(1), history.release(2)
    history.pass_days(2)
    before = history.names()
    report = collect(history, delete=False)
    assert history.names() == before
    text = "\n".join(report.lines())
    assert re.search(rf"^release +{old} ", text, re.MULTILINE)
    assert "not among the newest 1 of tiny, not in use" in text
    assert f"{new}  one of the newest 1 of tiny" in text
    assert report.bytes_removed == sum(history.store.manifest(ref).size for ref in history.artifacts_of(old))
    assert "nothing was changed: --delete does it" in text


def test_an_old_release_goes_with_all_that_only_it_used(history: History):
    old, new = history.release(1), history.release(2)
    gone, shared = history.artifacts_of(old), history.publish("dataset", "prompts")
    collect(history, days=2)
    assert kept(history) == {new}
    assert not any(history.store.exists(ref) for ref in gone)
    assert history.store.exists(shared)
    assert is_whole(history, new)
    assert not history.store.list_documents(f"releases/{old}")
    with pytest.raises(FileNotFoundError):
        history.store.read_file(f"releases/{old}/report.html")


@pytest.mark.slow
def test_the_same_is_done_in_s3(s3, tmp_path: Path):
    config = store_settings(uri=f"s3://{s3.bucket()}/all", endpoint=s3.endpoint, cache=str(tmp_path / "cache"))
    history = History(tmp_path, config, **STRICT)
    old, new = history.release(1), history.release(2)
    gone = history.artifacts_of(old)
    collect(history, days=2)
    assert kept(history) == {new}
    assert not any(history.store.exists(ref) for ref in gone)
    assert is_whole(history, new)


def test_a_stage_result_that_a_kept_release_uses_stays_whoever_computed_it(history: History):
    old = history.resolve(1)
    first = history.stage(old, "download", config={"same": 1}, content="same", produces=("checkpoint",))
    new = history.resolve(2)
    history.stage(new, "download", config={"same": 1}, content="same", produces=("checkpoint",))
    collect(history, days=2)
    assert kept(history) == {new}
    assert read_stage_record(history.store, first.key) is not None
    assert is_whole(history, new)


@pytest.mark.parametrize("way", ["production", "previous", "canary", "claim"])
def test_a_release_in_use_stays_however_old_it_is(history: History, way: str, tmp_path: Path):
    used = history.release(1)
    if way in ("production", "previous"):
        history.settle(used)
    if way == "canary":
        history.canary(used, Phase.BAKING)
    newer = history.release(2)
    if way == "previous":
        history.settle(newer)
    history.pass_days(30)
    history.release(3)
    if way == "claim":
        history.claim(used)
    report = collect(history, days=1.5)
    collect(history)
    assert used in kept(history)
    assert is_whole(history, used)
    assert reasons(report, used)


def test_the_newest_of_each_config_and_the_young_stay(tmp_path: Path):
    history = History(tmp_path, keep_releases=2, keep_days=10.0)
    ages = {}
    for number in range(5):
        ages[history.release(number)] = 5 - number
        ages[history.release(number, "other")] = 5 - number
        history.pass_days(4)
    collect(history)
    assert kept(history) == {release for release, age in ages.items() if age <= 2}


def test_nothing_young_is_removed(history: History):
    history.release(1)
    lonely = history.publish("checkpoint", "of a stage that has not written its result yet")
    history.release(2)
    report = collect_garbage(history.deployment, delete=True)
    assert history.store.exists(lonely)
    assert not [one for one in report.going if one.what == "artifact"]


def test_what_is_published_again_or_reused_is_young_again(history: History):
    ref, other = history.publish("checkpoint", "a"), history.publish("checkpoint", "b")
    long_ago = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    for one in (ref, other):
        os.utime(history.root / f"store/artifacts/{one.kind}/{one.digest}/_COMPLETE.json", (long_ago, long_ago))
    assert {one.name for one in collect(history, delete=False).going} == {str(ref), str(other)}
    assert history.publish("checkpoint", "a") == ref
    assert history.store.renew(other)
    assert not collect(history).going
    collect(history, days=2)
    assert list(history.store.artifacts()) == []
    assert not history.store.renew(ref)


@pytest.mark.parametrize("document", ["places/cpu.json", "claims/demo/tiny.json"])
def test_while_it_is_not_known_what_is_in_use_nothing_goes(history: History, document: str):
    history.release(1)
    history.release(2)
    history.store.write_document(document, {"form": "unknown"}, None)
    before = history.names()
    with pytest.raises(IntegrityError):
        collect(history, days=40)
    assert history.names() == before


def test_work_directories_of_removed_releases_go_and_others_stay(history: History, tmp_path: Path):
    old, new = history.release(1), history.release(2)
    jobs = tmp_path / "work" / "jobs"
    for name in (old, new, "tiny"):
        (jobs / name / "download" / "1").mkdir(parents=True)
    collect(history, days=0.5)
    assert len(list(jobs.iterdir())) == 3
    collect(history, days=1)
    assert sorted(path.name for path in jobs.iterdir()) == ["tiny", new]


def test_fetched_data_sets_go_once_nobody_has_asked_for_them_in_as_long_as_releases_are_kept(
    history: History, tmp_path: Path
):
    root, days_ago = tmp_path / "work" / "datasets", (datetime.now(UTC) - timedelta(days=2)).timestamp()
    old, oldest, new = root / "org/old" / ("a" * 40), root / "squad" / ("b" * 40), root / "org/new" / ("c" * 40)
    for path in (old, oldest, new):
        with using(path):
            (path / "test.parquet").write_bytes(b"12345")
    assert "data set" not in {one.what for one in collect(history).going}
    os.utime(old.with_name(f"{old.name}.lock"), (days_ago, days_ago))
    os.utime(oldest.with_name(f"{oldest.name}.lock"), (days_ago, days_ago))
    for delete in (False, True):
        report = collect(history, delete=delete)
        going = {(one.name, one.bytes) for one in report.going if one.what == "data set"}
        assert going == {(str(old), 5), (str(oldest), 5)}
        assert old.exists() is oldest.exists() is not delete
    assert (new / "test.parquet").exists()


def test_a_data_set_that_is_asked_for_while_it_was_to_go_stays(tmp_path: Path):
    path = tmp_path / "org" / "name" / ("a" * 40)
    with using(path):
        (path / "test.parquet").touch()
    (kept,) = kept_data_sets(tmp_path)
    with using(path):
        pass
    assert not remove_kept(kept)
    (kept,) = kept_data_sets(tmp_path)
    assert remove_kept(kept)
    assert list(kept_data_sets(tmp_path)) == []
    with using(path):
        assert list(path.iterdir()) == []


def test_leftovers_and_runs_of_removed_releases_go(history: History, tmp_path: Path):
    old, new = history.release(1), history.release(2)
    for number, release_id in enumerate((old, new)):
        history.store.write_document(f"runs/dag/{number}.json", {"release_id": release_id}, None)
    leftover = tmp_path / "store" / "incoming" / "killed"
    leftover.mkdir(parents=True)
    (leftover / "part").write_bytes(b"12345")
    days_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    for path in (leftover / "part", leftover):
        os.utime(path, (days_ago, days_ago))
    report = collect(history, days=2)
    assert not leftover.exists()
    assert history.store.list_documents("runs") == ["runs/dag/1.json"]
    assert [one.bytes for one in report.going if one.what == "leftover"] == [5]


EVENTS = st.one_of(
    st.tuples(st.just("release"), st.integers(1, 6), st.sampled_from(["tiny", "tiny", "other"])),
    st.tuples(st.sampled_from(["settle", "settle", "canary", "canary ends", "claim"]), st.integers(0, 3), st.none()),
    st.tuples(st.sampled_from(["roll back", "claim ends", "collect", "collect"]), st.integers(1, 15), st.none()),
)


BEGINNING = [
    ("release", 1, "tiny"), ("settle", 0, None), ("release", 2, "tiny"), ("settle", 1, None),
    ("release", 3, "tiny"), ("canary", 2, None), ("release", 4, "tiny"), ("claim", 3, None),
]  # fmt: skip


class Drama:
    """Applies random events to a history, and knows what is in use."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.canaries: set[str] = set()
        self.claimed: set[str] = set()

    def apply(self, name: str, number: int, config: str | None) -> None:
        there = sorted(kept(self.history))
        if name in ("settle", "canary", "canary ends", "claim"):
            if there:
                getattr(self, name.replace(" ", "_"))(there[number % len(there)])
        elif name == "release":
            self.history.release(number, config)
        elif name == "collect":
            self.collect(days=number)
        else:
            getattr(self, name.replace(" ", "_"))()

    def settle(self, release_id: str) -> None:
        self.history.settle(release_id)

    def roll_back(self) -> None:
        self.history.roll_back()

    def canary(self, release_id: str) -> None:
        self.history.canary(release_id, Phase.BAKING)
        self.canaries.add(release_id)

    def canary_ends(self, release_id: str) -> None:
        self.history.canary(release_id, Phase.PROMOTED)
        self.canaries.discard(release_id)

    def claim(self, release_id: str) -> None:
        self.history.claim(release_id)
        self.claimed = {release_id}

    def claim_ends(self) -> None:
        self.history.claim(None)
        self.claimed = set()

    def collect(self, days: int) -> None:
        self.history.pass_days(days)
        for release_id in self.claimed:  # a living holder is heard of
            self.history.claim(release_id)
        collect(self.history)

    def in_use(self) -> set[str]:
        pointers = read_place(self.history.store, TARGET)
        serving = {pointer.release_id for pointer in (pointers.production, pointers.previous) if pointer}
        return serving | self.canaries | self.claimed


@pytest.mark.slow
@settings(
    max_examples=8,
    phases=[Stage.explicit, Stage.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(events=st.lists(EVENTS, min_size=4, max_size=12), keep_days=st.sampled_from([1.0, 1.0, 5.0]))
def test_production_previous_and_running_releases_are_never_touched(tmp_path_factory, events, keep_days):
    drama = Drama(History(tmp_path_factory.mktemp("history"), **(STRICT | {"keep_days": keep_days})))
    for event in [
        *BEGINNING,
        *events,
        ("release", 7, "tiny"),
        ("release", 7, "other"),
        ("collect", 9, None),
        ("collect", 9, None),
    ]:
        drama.apply(*event)
        for release_id in drama.in_use():
            assert release_id in kept(drama.history)
            assert is_whole(drama.history, release_id)


def test_pointers_keep_their_repository_also_without_its_release(history: History):
    release_id = history.release(1)
    repository = history.repository(release_id)
    history.settle(release_id)
    pointers = read_place(history.store, TARGET)
    assert pointers.production is not None
    moved = pointers.production.model_copy(update={"release_id": "another-00000001-00000001"})
    serve(history.store, MODEL, TARGET, moved)
    history.release(2)
    collect(history, days=2)
    assert release_id not in kept(history)
    assert history.store.verify(repository) == []
