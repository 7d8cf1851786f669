"""The table of formats for people: GPUs side by side, versions that agree in one block, and why below each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from llm_pipeline.planning.cost_table import aligned
from llm_pipeline.planning.matrix import Cell, Verdict

_WORDS: Mapping[Verdict, str] = {"legal": "yes", "partial": "partial", "unknown": "?", "illegal": "no"}
_ARCHITECTURE, _VERSION = "\0", "\1"


def format_matrix(cells: Sequence[Cell]) -> str:
    """The cells as lines of text, ending with a newline.

    GPUs of one compute capability share a column, as the tables know nothing finer; versions of which all the same is
    said share a block.
    """
    versions: dict[tuple[str | None, str, str], list[Cell]] = {}
    for cell in cells:
        versions.setdefault((cell.model, cell.engine, cell.version), []).append(cell)
    blocks: dict[tuple[object, ...], list[Cell]] = {}
    for (model, engine, _), of_version in versions.items():
        said = tuple((cell.format, cell.accelerator, cell.verdict, *_templates(cell)) for cell in of_version)
        blocks.setdefault((model, engine, said), []).extend(of_version)
    sections = [*(_block(block) for block in blocks.values()), _legend(cells)]
    return "\n".join("\n".join((*section, "")) for section in sections)


def _block(cells: Sequence[Cell]) -> list[str]:
    architectures = sorted({cell.architecture for cell in cells}, key=_number)
    verdicts = {(cell.format, cell.architecture): _WORDS[cell.verdict] for cell in cells}
    formats = dict.fromkeys(cell.format for cell in cells)
    rows = [(name, *(verdicts[name, one] for one in architectures)) for name in formats]
    model = f", {cells[0].model}" if cells[0].model else ""
    return [
        f"{cells[0].engine} {_listed(cell.version for cell in cells)}{model}",
        *aligned([("format", *architectures), *rows], numbers_from=len(architectures) + 1),
        *_reasons(cell for name in formats for cell in cells if cell.format == name),
    ]


def _reasons(cells: Iterable[Cell]) -> Iterator[str]:
    """Each reason once, with every compute capability and version that it holds for."""
    held: dict[str, list[Cell]] = {}
    for cell in cells:
        for template in _templates(cell):
            held.setdefault(template, []).append(cell)
    for template, of_reason in held.items():
        architectures = sorted({cell.architecture for cell in of_reason}, key=_number)
        versions = _listed(cell.version for cell in of_reason)
        yield f"  - {template.replace(_ARCHITECTURE, ', '.join(architectures)).replace(_VERSION, versions)}"


def _templates(cell: Cell) -> tuple[str, ...]:
    """The cell's reasons without what differs between GPUs and versions."""
    return tuple(why.replace(cell.architecture, _ARCHITECTURE).replace(cell.version, _VERSION) for why in cell.why)


def _legend(cells: Iterable[Cell]) -> list[str]:
    named: dict[str, dict[str, None]] = {}
    for cell in cells:
        named.setdefault(cell.architecture, {})[cell.accelerator] = None
    return ["GPUs", *(f"  {one}: {', '.join(named[one])}" for one in sorted(named, key=_number))]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm"))
