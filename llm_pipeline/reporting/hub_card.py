"""The model card of a checkpoint that goes to a hub: metadata, recipe, accuracy, load, provenance, how to serve it.

    text = render_card(CardFacts("org/name", record, "fp8", ("h100",), report, results, ref, signed=True, base=fields))

All of it is read from the release's evidence, and nothing of it changes with the time at which it is written: the same
evidence gives the same card. Text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from llm_pipeline.base.quantities import byte_size, points
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.release.step import Effect
from llm_pipeline.reporting.headline import UNQUANTIZED
from llm_pipeline.reporting.highlights import load_figures
from llm_pipeline.reporting.model import AccuracyStudy, ReportData

PROVENANCE_DIRECTORY = "llm_pipeline"
"""Where the pushed repository has what is not the model's: loaders, and our own download, leave it out."""

_TEMPLATE = "card.md.jinja"
_SERVERS = {"vllm": "vllm serve {repository}{kv_cache}", "tensorrt_llm_llmapi": "trtllm-serve {repository}"}


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
        """What led to the checkpoint and judged it before production: of the release, the recipe and the targets.

        Reports and what production does change later.
        """
        subjects = {"", self.recipe, *self.targets}
        found = [(one, step_named(one.stage)) for one in self.results if one.subject in subjects]
        return tuple(one for one, step in found if step and step.effect not in (Effect.PRODUCTION, Effect.RECORD))

    def result(self, stage: str, subject: str) -> StageResult | None:
        """A stage's result; None where there is none."""
        return next((one for one in self.results if (one.stage, one.subject) == (stage, subject)), None)


def render_card(facts: CardFacts) -> str:
    """The card: YAML metadata, then Markdown."""
    import jinja2

    release = facts.record.release
    targets = [release.target(name) for name in facts.targets]
    kv_cache = " --kv-cache-dtype fp8" if facts.quantization.kv_cache == "fp8" else ""
    engines = dict.fromkeys(target.engine for target in targets if target.engine in _SERVERS)
    quantized = facts.result("quantize", facts.recipe)
    ratio = quantized.metrics.get("size_ratio") if quantized else None
    environment = jinja2.Environment(  # noqa: S701 - Markdown, which `_escaped` escapes
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_escaped
    )
    environment.filters.update(byte_size=byte_size, points=points, plain=_Plain)
    source = resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    text = environment.from_string(source).render(
        facts=facts,
        record=facts.record,
        model=facts.record.model,
        recipe=facts.quantization,
        taken_from=facts.record.checkpoints.get(facts.recipe) if facts.quantization.source else None,
        size_ratio=ratio if facts.quantized and isinstance(ratio, int | float) else None,
        tools=quantized.tools if quantized else {},
        studies=list(_studies(facts)),
        speed=[figure for load in facts.report.loads if load.target in facts.targets for figure in load_figures(load)],
        commands=[_SERVERS[name].format(repository=facts.repository, kv_cache=kv_cache) for name in engines],
        targets=targets,
        provenance=PROVENANCE_DIRECTORY,
    )
    fields = yaml.safe_dump(dict(_metadata(facts)), sort_keys=False, allow_unicode=True)
    return f"---\n{fields}---\n\n{text.strip()}\n"


class _Plain(str):
    """A text of which the template shows every character as it is, within a line of code."""

    __slots__ = ()


def _escaped(value: object) -> object:
    if isinstance(value, _Plain):
        return one_line(value).replace("`", "'")
    return markdown(value) if isinstance(value, str) else value


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


def _studies(facts: CardFacts) -> Iterator[tuple[AccuracyStudy, dict[str, str]]]:
    """What was judged of it, with what its gate said of each task, and of all together."""
    for study in facts.report.accuracy:
        if study.name in (facts.recipe, *(f"served on {target}" for target in facts.targets)):
            yield (
                study,
                {fact.name.removeprefix("accuracy loss, "): fact.verdict.value for fact in study.judgement.evidence},
            )
