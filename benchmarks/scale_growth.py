"""What a release asks of its store while 10, 100 and 1,000 others are in it, and what parsing as many DAGs takes.

    python benchmarks/scale_growth.py [--releases 10 100 1000] [--configs 10 100 1000]

One release of one target goes through the run without Airflow: the product's planning, claim, keys, leases, records,
report and index, with stages that do no model's work (`tests/airflow/stages_for_tests`). Every call of the store is
counted; a listing counts once for each 1,000 names, as S3 pages it. Others' releases are of their own models, five
each; in the rows `own` they are earlier releases of the very config. Then the DAG files of so many release configs are
parsed. Seconds are CPU seconds of this process. Goals: calls do not grow with others' stored releases, nor by more than
the newest releases that are looked at with one's own; a release config is parsed in 45 ms, however many there are; and
1,000 of them in one folder within the 30 s after which Airflow gives up; and the index of a store that holds as many
releases as it may is read in a second, and has a release written into it in two.
Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="scale-growth-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/doubles"))

import store_history
from in_process_runner import InProcess, scripted_stages
from llm_pipeline_airflow import deployment_dags, discovery

from benchmarks.goals import at_most
from benchmarks.scale import write_project
from llm_pipeline import local_run
from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.inspection.release_index import INDEX_NAME, INDEXED, index_release, read_releases
from llm_pipeline.local_run import LocalRun
from llm_pipeline.planning.reuse import read_history
from llm_pipeline.release import execute
from llm_pipeline.release.loading import load_release
from llm_pipeline.stages.resolve import model_released_before
from llm_pipeline.store import open_store

ROOT = Path(__file__).resolve().parents[1]
RELEASES_A_MODEL = 5
NAMES_A_PAGE = 1000
PARSE_MILLISECONDS = 45.0
"""Of a release config: 200 of them in a folder are then parsed in a third of Airflow's 30 s, also where it is busy."""
MANY_CONFIGS, IMPORT_SECONDS = 1000, 30.0
"""Airflow's own limit for one file, `dagbag_import_timeout`."""
READS = ("read_document", "read_file", "manifest", "fetch", "check", "exists", "provenance")
WRITES = ("write_document", "write_file", "delete_document", "publish")
EXAMPLE = "llama-3.1-8b-instruct.yaml"


def main() -> int:
    """Count and time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--releases", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--configs", type=int, nargs="+", default=[10, 100, 1000])
    options = parser.parse_args()
    try:
        goals = [*_store_goals(options.releases), *_index_goals(), *_parse_goals(options.configs)]
    finally:
        shutil.rmtree(os.environ["AIRFLOW_HOME"], ignore_errors=True)
    return 0 if all(goals) else 1


def _store_goals(sizes: list[int]) -> Iterator[bool]:
    head = ("step", "reads", "writes", "pages", "KB read", "KB written", "CPU s")
    print(f"{'stored':>12} " + " ".join(f"{name:>10}" for name in head))
    totals: dict[tuple[str, int], int] = {}
    for whose in ("others'", "own"):
        for size in sizes:
            totals[whose, size] = _one_release(size, own=whose == "own")
    for whose, most in (("others'", 1.1), ("own", 1.3)):
        grown = totals[whose, sizes[-1]] / totals[whose, sizes[0]]
        yield at_most(f"growth_of_store_calls_{whose.strip(chr(39))}", grown, most, "times")


def _one_release(stored: int, *, own: bool) -> int:
    """Count the calls of one release; returns their number."""
    with tempfile.TemporaryDirectory(prefix="scale-growth-") as place:
        root = Path(place)
        write_project(root, ["m0"])
        config = root / "configs/releases/m0-a.yaml"
        history = store_history.History(root)
        for number in range(stored):
            name = "m0-a" if own else f"other-{number // RELEASES_A_MODEL}"
            store_history.MODEL = "demo/m0" if own else f"demo/{name}"
            history.release(number, name)
        read_releases(history.store)
        counted = 0
        steps: dict[str, Callable[[], Any]] = {
            "history": lambda: read_history(history.store, load_release(config)),
            "licence": lambda: model_released_before(history.store, "m0-a"),
            "release": lambda: _release(config),
        }
        for step, work in steps.items():
            with _counting() as calls:
                clock = time.process_time()
                work()
                calls["seconds"] = time.process_time() - clock
            _print(f"{stored} {'own' if own else 'others'}", step, calls)
            counted += sum(calls[name] for name in ("reads", "writes", "pages"))
        with _counting() as calls:
            read_releases(open_store(load_release(config).deployment.store))
        _print(f"{stored} {'own' if own else 'others'}", "page", calls)
        return counted


def _index_goals() -> Iterator[bool]:
    """What a full index takes a report and the page."""
    with tempfile.TemporaryDirectory(prefix="scale-growth-") as place:
        history = store_history.History(Path(place))
        release_id = history.release(0)
        one, store = read_releases(history.store).whole[0], history.store
        names = (f"model-{number // RELEASES_A_MODEL}-{number:08x}-00000000" for number in range(INDEXED))
        rows = {name: one.row.model_copy(update={"release_id": name}) for name in names}
        full = {name: one.model_copy(update={"row": row}).model_dump(mode="json") for name, row in rows.items()}
        document = store.read_document(INDEX_NAME)
        store.write_document(INDEX_NAME, {**document.value, "releases": full}, document.revision)
        kilobytes = (store.root / INDEX_NAME).stat().st_size / 1e3
        for what, seconds, work in (
            ("report", 2.0, lambda: index_release(store, release_id)),
            ("page", 1.0, lambda: read_releases(store)),
        ):
            clock = time.process_time()
            work()
            taken = time.process_time() - clock
            yield at_most(f"{what}_with_an_index_of_{INDEXED}_releases_{kilobytes:.0f}_KB", taken, seconds, "CPU s")


def _release(config: Path) -> None:
    stages = scripted_stages()
    stages.REAL = (*stages.REAL, "report")
    local_run.Runners, execute.load_stage = InProcess(), stages.load_stage
    if (verdict := LocalRun(config, approve=lambda _line: True).run()) is not Verdict.GO:
        raise SystemExit(f"the release ended with {verdict}")


def _print(stored: str, step: str, calls: Counter[str]) -> None:
    counts = [calls[name] for name in ("reads", "writes", "pages")]
    figures = [*counts, f"{calls['read'] / 1e3:.0f}", f"{calls['written'] / 1e3:.0f}", f"{calls['seconds']:.2f}"]
    print(f"{stored:>12} " + " ".join(f"{figure:>10}" for figure in (step, *figures)), flush=True)


@contextmanager
def _counting() -> Iterator[Counter[str]]:
    """Count the outermost calls of every local store, and the bytes of documents and files."""
    calls: Counter[str] = Counter()
    kept = {name: getattr(LocalStore, name) for name in (*READS, *WRITES, "list_documents")}

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(store: LocalStore, *arguments: Any, **options: Any) -> Any:
            found = method(store, *arguments, **options)
            if name == "list_documents":
                calls["pages"] += 1 + len(found) // NAMES_A_PAGE
                return found
            calls["reads" if name in READS else "writes"] += 1
            file = store.root / str(arguments[0]) if name in (*READS[:2], *WRITES[:2]) else None
            if file is not None and file.is_file():
                calls["read" if name in READS else "written"] += file.stat().st_size
            return found

        return wrapper

    for name, method in kept.items():
        setattr(LocalStore, name, counted(name, method))
    try:
        yield calls
    finally:
        for name, method in kept.items():
            setattr(LocalStore, name, method)


def _parse_goals(sizes: list[int]) -> Iterator[bool]:
    print(f"{'configs':>8} {'DAG file':<24} {'CPU s':>6}")
    files: dict[str, Callable[[tuple[Path, ...]], Any]] = {
        "releases": discovery.release_dags,
        "release_config_errors": discovery.check_release_configs,
        "guards": deployment_dags.guard_dags,
        "rollbacks": deployment_dags.rollback_dags,
        "retention": deployment_dags.retention_dags,
    }
    slowest = 0.0
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="scale-growth-") as place:
            root = Path(place, "configs")
            shutil.copytree(ROOT / "configs", root)
            text = (root / "releases" / EXAMPLE).read_text()
            shutil.rmtree(root / "releases")
            (root / "releases").mkdir()
            for number in range(size):
                named = re.sub(r"(\bid: [\w./-]+)", rf"\1-{number}", text, count=1)
                (root / "releases" / f"model-{number}.yaml").write_text(named)
            for name, parse in files.items():
                clock = time.process_time()
                parse((root / "releases",))
                seconds = time.process_time() - clock
                slowest = max(slowest, seconds)
                print(f"{size:>8} {name:<24} {seconds:>6.2f}", flush=True)
    yield at_most("parse_of_a_release_config", slowest / sizes[-1] * 1e3, PARSE_MILLISECONDS, "CPU ms")
    if sizes[-1] >= MANY_CONFIGS:
        yield at_most(f"parse_of_{sizes[-1]}_release_configs", slowest, IMPORT_SECONDS, "CPU s")


if __name__ == "__main__":
    raise SystemExit(main())
