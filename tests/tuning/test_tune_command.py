"""What `tune` refuses before hours of trials, and what it shows of them when they are cut short."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from unprivileged import directory_for_everyone, mode, without_root

from llm_pipeline.base.errors import Transient
from llm_pipeline.cli import main
from llm_pipeline.cli.tune import measure_trials
from llm_pipeline.config.target import Target
from llm_pipeline.tuning.sweep import Settings, Sweep, Trial, knobs_of

CPU = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--output", "none/faster.yaml"], "none: no such directory"),
        (["--output", "faster.txt"], "a target is read from a .yaml or .yml file"),
        (["--output", "there.yaml"], "this file exists"),
        (["--output", "faster.yaml", "--trials", "0"], "--trials must be at least 1"),
    ],
)
def test_what_could_not_be_written_after_the_trials_is_refused_before_them(
    tmp_path: Path, monkeypatch, capsys, options: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").touch()
    assert main(["tune", "tiny", "--target", "cpu", *options]) == 4
    assert says in capsys.readouterr().err


def test_a_directory_that_may_not_be_written_is_refused_before_them(capsys) -> None:
    with directory_for_everyone() as root, without_root(root), mode(root, 0o555):
        assert main(["tune", "tiny", "--target", "cpu", "--output", str(root / "faster.yaml")]) == 4
    assert f"{root}: it may not be written" in capsys.readouterr().err


@pytest.mark.parametrize("end", [Transient("the hub is gone"), KeyboardInterrupt()], ids=["an error", "ctrl-c"])
def test_a_sweep_that_is_cut_short_shows_what_it_measured(capsys, end: BaseException) -> None:
    def measure(settings: Settings) -> Trial:
        if forgotten or len(sweep.trials) == 2:
            raise end
        return Trial(dict(settings), highest_rate_per_second=3.0 + 4.0 * len(sweep.trials))

    forgotten: list[bool] = []
    knobs = knobs_of(CPU, most_threads=8)
    bench = SimpleNamespace(knobs=knobs, target=CPU, forget=lambda: forgotten.append(True))
    sweep = Sweep(knobs, measure, lambda _: True, most_trials=9)
    with pytest.raises(type(end)):
        measure_trials(sweep, bench)
    shown = capsys.readouterr().out
    assert "3.00" in shown
    assert "limits.maximum_sequences" in shown
    assert "7.00" in shown
    assert forgotten == [True]


def test_what_was_measured_is_shown_although_the_store_is_gone(capsys) -> None:
    def measure(settings: Settings) -> Trial:
        if sweep.trials:
            raise Transient("the store is gone")
        return Trial(dict(settings), highest_rate_per_second=3.0)

    def forget() -> None:
        raise Transient("the store is gone")

    knobs = knobs_of(CPU, most_threads=8)
    sweep = Sweep(knobs, measure, lambda _: True, most_trials=9)
    with pytest.raises(Transient, match="the store is gone"):
        measure_trials(sweep, SimpleNamespace(knobs=knobs, target=CPU, forget=forget))
    assert "3.00" in capsys.readouterr().out
