"""The model card of a checkpoint that goes to a hub: metadata, recipe, accuracy, load, provenance, how to serve it.

    text = render_card(CardFacts("org/name", record, "fp8", ("h100",), report, results, ref, signed=True, base=fields))

All of it is read from the release's evidence, and nothing of it changes with the time at which it is written: the same
evidence gives the same card. Text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from llm_pipeline.accuracy.evaluation import PairedAccuracy
from llm_pipeline.base.quantities import byte_size, points
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.release.step import Effect
from llm_pipeline.reporting.headline import UNQUANTIZED
from llm_pipeline.reporting.highlights import load_figures
from llm_pipeline.reporting.model import AccuracyStudy, ReportData

PROVENANCE_DIRECTORY = "llm_pipeline"
"""Where the pushed repository has what is not the model's: loaders, and our own download, leave it out."""

_SERVERS = {
    "vllm": "vllm serve {repository}{kv_cache}",
    "tensorrt_llm_llmapi": "trtllm-serve {repository}",
}


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of.

    Attributes:
        repository: `organisation/name` of the card.
        record: The release's record.
        recipe: Name of the recipe that made the checkpoint.
        targets: Targets that it passed all gates for.
        report: The release's report, as data.
        results: The release's results, in the order of the flow.
        checkpoint: The checkpoint.
        bytes: Its size.
        signed: Its signature lies beside it.
        base: Metadata taken over from the base model's card.
    """

    repository: str
    record: ReleaseRecord
    recipe: str
    targets: tuple[str, ...]
    report: ReportData
    results: tuple[StageResult, ...]
    checkpoint: ArtifactRef
    bytes: int
    signed: bool
    base: Mapping[str, Any]

    @property
    def quantization(self) -> QuantizationRecipe:
        """The recipe."""
        return self.record.release.recipe(self.recipe)

    @property
    def quantized(self) -> bool:
        """Whether it is another model than the base."""
        return self.quantization.weights != UNQUANTIZED

    @property
    def made_by_modelopt(self) -> bool:
        """Whether it was quantized here."""
        return self.quantized and self.quantization.source is None

    @property
    def behind_it(self) -> tuple[StageResult, ...]:
        """What led to the checkpoint and judged it before production: of the release, the recipe and the targets."""
        subjects = {"", self.recipe, *self.targets}
        return tuple(one for one in self.results if one.subject in subjects and _is_evidence(one.stage))

    def result(self, stage: str, subject: str) -> StageResult | None:
        """A stage's result; None where there is none."""
        return next((one for one in self.results if (one.stage, one.subject) == (stage, subject)), None)


def _is_evidence(stage: str) -> bool:
    """Whether a stage works on the release itself; reports and what production does change later."""
    step = step_named(stage)
    return step is not None and step.effect not in (Effect.PRODUCTION, Effect.RECORD)


def render_card(facts: CardFacts) -> str:
    """The card: YAML metadata, then Markdown."""
    fields = yaml.safe_dump(dict(_metadata(facts)), sort_keys=False, allow_unicode=True)
    parts = (_heading(facts), _recipe(facts), _accuracy(facts), _speed(facts), _serving(facts))
    lines = [line for part in (*parts, _provenance(facts)) for line in part]
    return f"---\n{fields}---\n\n" + "\n".join(lines).rstrip("\n") + "\n"


def _metadata(facts: CardFacts) -> Iterator[tuple[str, Any]]:
    yield "base_model", facts.record.model.id
    if facts.quantized:
        yield "base_model_relation", "quantized"
    yield from facts.base.items()
    if "pipeline_tag" not in facts.base:
        yield "pipeline_tag", "text-generation"
    # Transformers loads such a checkpoint without its scales and says nothing, so it is not named as the library.
    yield "library_name", "Model Optimizer" if facts.made_by_modelopt else "transformers"
    yield "tags", ["llm-pipeline", *(["modelopt", facts.quantization.weights] if facts.made_by_modelopt else [])]


def _heading(facts: CardFacts) -> Iterator[str]:
    model = facts.record.model
    what = f"quantized with the recipe {facts.recipe}" if facts.quantized else "at its own precision"
    yield f"# {markdown(facts.repository)}"
    yield ""
    yield f"{markdown(model.id)} at commit `{model.commit}`, {markdown(what)}."
    yield ""
    yield f"Licence of the base model, from which this is derived: {markdown(model.license or 'not stated')}."
    yield ""


def _recipe(facts: CardFacts) -> Iterator[str]:
    recipe = facts.quantization
    yield "## Recipe"
    yield ""
    if recipe.description:
        yield from (markdown(recipe.description), "")
    rows = [("Weights", recipe.weights), ("KV cache", recipe.kv_cache), ("Kept as they are", ", ".join(recipe.exclude))]
    if (calibration := recipe.calibration) is not None:
        sources = ", ".join(calibration.sources)
        rows.append(("Calibration", f"{calibration.samples} texts of {sources}, seed {calibration.seed}"))
    if recipe.source and (pinned := facts.record.checkpoints.get(facts.recipe)):
        rows[:1] = [("Taken from", f"{recipe.source} at commit {pinned.commit}")]
    quantized = facts.result("quantize", facts.recipe)
    rows.append(("Size", byte_size(facts.bytes)))
    if quantized is not None:
        ratio = quantized.metrics.get("size_ratio")
        if facts.quantized and isinstance(ratio, int | float):
            rows[-1] = ("Size", f"{byte_size(facts.bytes)}, the weights {100 * ratio:.1f} % of the base's")
        rows += [("Made with", f"{name} {version}") for name, version in sorted(quantized.tools.items())]
    yield from _table(("", ""), [row for row in rows if row[1]])


def _accuracy(facts: CardFacts) -> Iterator[str]:
    names = {facts.recipe: ("accuracy", facts.recipe)}
    names |= {f"served on {target}": ("served_accuracy", target) for target in facts.targets}
    studies = [study for study in facts.report.accuracy if study.name in names]
    if not studies:
        return
    dtype = facts.record.release.baseline.dtype
    yield "## Accuracy"
    yield ""
    yield f"Item by item against the same model in {dtype}, unquantized."
    yield ""
    for study in studies:
        result = facts.result(*names[study.name])
        yield from _study(facts, study, result.judgement if result else None)


def _study(facts: CardFacts, study: AccuracyStudy, judgement: Judgement | None) -> Iterator[str]:
    compared, served = study.comparison, study.name != facts.recipe
    rows = [_accuracy_row(task, study.task_margin, judgement) for task in compared.tasks]
    rows.append(_accuracy_row(compared.pooled, study.margin, judgement))
    yield f"### {'As served on ' + markdown(study.name.removeprefix('served on ')) if served else 'The checkpoint'}"
    yield ""
    yield from _table(("task", "items", "base", "this model", "points lost", "between", "allowed", "verdict"), rows)
    confidence = f"{100 * compared.confidence:.4g} %"
    yield f"The bounds of a loss are one-sided, at {confidence} each. Less than nothing lost is a gain."
    yield ""


def _accuracy_row(part: PairedAccuracy, margin: float, judgement: Judgement | None) -> tuple[str, ...]:
    evidence = judgement.evidence if judgement else ()
    fact = next((fact for fact in evidence if fact.name == f"accuracy loss, {part.name}"), None)
    verdict = fact.verdict.value if fact else ""
    if part.loss is None:
        return (part.name, str(part.pairs), "", "", "", "", points(margin), verdict)
    shown = ("" if score is None else f"{100 * score:.2f} %" for score in (part.baseline, part.candidate))
    between = f"{points(part.loss.lower)} to {points(part.loss.upper)}"
    return (part.name, f"{part.pairs:,}", *shown, points(part.loss.estimate), between, points(margin), verdict)


def _speed(facts: CardFacts) -> Iterator[str]:
    rows = [
        (figure.label, figure.value, figure.note)
        for load in facts.report.loads
        if load.target in facts.targets
        for figure in load_figures(load)
    ]
    if rows:
        yield "## Speed"
        yield ""
        yield from _table(("", "", ""), rows)


def _serving(facts: CardFacts) -> Iterator[str]:
    targets = [facts.record.release.target(name) for name in facts.targets]
    yield "## Serving"
    yield ""
    kv_cache = " --kv-cache-dtype fp8" if facts.quantization.kv_cache == "fp8" else ""
    for command in dict.fromkeys(_SERVERS[target.engine] for target in targets if target.engine in _SERVERS):
        yield from ("```", command.format(repository=facts.repository, kv_cache=kv_cache), "```", "")
    rows = [(target.name, target.accelerator, _runtime(target), target.container or "") for target in targets]
    yield "It passed its gates on:"
    yield ""
    yield from _table(("target", "accelerator", "engine", "container"), rows)
    if facts.made_by_modelopt:
        yield "The scales lie beside the packed weights: load it with an engine that reads modelopt's checkpoints."
        yield "Transformers alone ignores them, without an error."
        yield ""


def _runtime(target: Target) -> str:
    again = "" if target.weight_format == "native" else f", which compressed it again to {target.weight_format}"
    return " ".join(filter(None, (target.engine, target.runtime_version))) + again


def _provenance(facts: CardFacts) -> Iterator[str]:
    yield "## Provenance"
    yield ""
    checkpoint = f"{facts.checkpoint.kind}/{facts.checkpoint.digest}"
    yield f"Release `{_plain(facts.record.release_id)}`, checkpoint `{checkpoint}`."
    yield f"`{PROVENANCE_DIRECTORY}/release.json` has each stage's key, digests, tools and verdict."
    if facts.signed:
        yield f"`{PROVENANCE_DIRECTORY}/_SIGNATURE.json` is a sigstore bundle over every file of the checkpoint."
    yield ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(map(markdown, row))} |" for row in rows)
    yield ""


def _plain(value: str) -> str:
    return one_line(value).replace("`", "'")
