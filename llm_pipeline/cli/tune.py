"""The command that looks for better settings of a target: `tune`."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.base.untrusted_text import quoted
from llm_pipeline.cli.options import Commands, add_command, open_flow, sentence, write_lines

if TYPE_CHECKING:
    from llm_pipeline.flow import ReleaseProgress
    from llm_pipeline.tuning.sweep import Sweep, Trial
    from llm_pipeline.tuning.trials import TrialBench

_MOST_TRIALS = 12


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    summary = "try other settings of a release's target on its staging server, and suggest a target file"
    tuning = add_command(
        commands,
        "tune",
        _tune,
        summary,
        description=f"{sentence(summary)} Each trial is built, packaged, staged and measured by the load gate's own "
        "search. The result is a file: no release uses it until a release config names it.",
    )
    tuning.add_argument("release", metavar="RELEASE", help="a packaged release (or the beginning of its id)")
    tuning.add_argument("--target", dest="gpu_target", required=True, metavar="TARGET", help="which of its targets")
    tuning.add_argument("--output", type=Path, required=True, metavar="FILE", help="the target file to write")
    tuning.add_argument("--trials", type=int, default=_MOST_TRIALS, help=f"most trials (default: {_MOST_TRIALS})")


def _tune(options: argparse.Namespace) -> int:
    from llm_pipeline.runners.runners import Runners
    from llm_pipeline.tuning.sweep import Sweep
    from llm_pipeline.tuning.trials import TrialBench

    _require_writable(options.output)
    if options.trials < 1:
        raise ConfigError("--trials must be at least 1", hint="the first is of the settings as they are")
    flow = open_flow(options, options.release)
    if options.gpu_target not in flow.targets:
        raise ConfigError(f"no target {options.gpu_target!r}", hint=f"the release has {', '.join(flow.targets)}")
    bench = TrialBench(flow, options.gpu_target, Runners(flow.deployment))
    sweep = Sweep(bench.knobs, bench.measure, lambda settings: _fits(flow, bench, settings), options.trials)
    best = measure_trials(sweep, bench)
    if best.trouble:
        sys.stderr.write(f"no trial could be measured: {best.trouble}: {quoted(best.detail)}\n")
        return ExitCode.NO_GO
    if best is sweep.trials[0]:
        sys.stdout.write("no other settings held more traffic by more than noise: nothing is suggested\n")
        return ExitCode.GO
    options.output.write_text(_suggestion(bench, sweep.trials[0], best), encoding="utf-8")
    sys.stdout.write(f"{options.output}\n")
    return ExitCode.GO


def measure_trials(sweep: Sweep, bench: TrialBench) -> Trial:
    """The best trial; a table of all is written, also when an error or a person cuts them short after hours."""
    from llm_pipeline.tuning.sweep import settings_of

    try:
        return sweep.run(settings_of(bench.target, bench.knobs))
    finally:
        write_lines(_table(sweep.trials))  # first: a store that cannot be reached may be what cut them short
        bench.forget()


def _require_writable(output: Path) -> None:
    """Refuse a file that could not be written after the trials, or that no release could name."""
    if output.exists():
        raise ConfigError("this file exists", where=str(output), hint="name another one: nothing is overwritten")
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError("a target is read from a .yaml or .yml file", where=str(output), hint="name it so")
    directory = output.parent
    if not directory.is_dir():
        raise ConfigError("no such directory", where=str(directory), hint="make it, or name another one")
    if not os.access(directory, os.W_OK, effective_ids=True):
        raise ConfigError("it may not be written", where=str(directory), hint="change its owner, or name another one")


def _fits(flow: ReleaseProgress, bench: TrialBench, settings: object) -> bool:
    """Whether the memory model of `plan` lets settings be tried; a model whose sizes are not known is tried."""
    from llm_pipeline.planning.target_memory import judge_memory
    from llm_pipeline.tuning.sweep import with_settings

    facts = flow.record.facts
    if facts is None:
        return True
    target = with_settings(bench.target, settings)  # type: ignore[arg-type]
    return judge_memory(target, flow.release.recipe(flow.chosen_recipe(target.name)), facts)[1] is None


def _table(trials: list[Trial]) -> list[str]:
    """One line a trial, in order."""
    from llm_pipeline.tuning.sweep import changed

    lines = [f"{'':>3}  {'holds /s':>9}  {'good /s at target':>17}  {'memory GB':>9}  settings"]
    for number, trial in enumerate(trials, start=1):
        memory = f"{trial.memory_bytes / 1e9:.2f}" if trial.memory_bytes else "-"
        settings = changed(trials[0].settings, trial.settings) if number > 1 else "as they are"
        outcome = f"{trial.trouble}: {trial.detail[:60]}" if trial.trouble else ""
        lines.append(
            f"{number:>3}  {trial.highest_rate_per_second:>9.2f}  {trial.good_per_second:>17.2f}  {memory:>9}  "
            f"{settings}  {outcome}".rstrip()
        )
    return lines


def _suggestion(bench: TrialBench, first: Trial, best: Trial) -> str:
    """The target file, with what was measured at its head."""
    import yaml

    from llm_pipeline.tuning.sweep import changed, with_settings

    target = with_settings(bench.target, best.settings)
    document = target.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    turned = changed(first.settings, best.settings)
    head = (
        f"# Suggested on {datetime.now(UTC):%Y-%m-%d} for {bench.target.name}: {turned}.\n"
        f"# Held {best.highest_rate_per_second:.2f} requests/s within the service level, "
        f"{first.highest_rate_per_second:.2f} as it was. Confirm it by a release.\n"
    )
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
