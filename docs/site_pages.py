"""Hook of MkDocs: pages made from the code, pages that lie beside docs/, and Markdown as Python-Markdown reads it.

`make docs` builds the site. In the repository the same pages are read as they are, so links are written for there.
"""

from __future__ import annotations

import argparse
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from llm_pipeline.base import entry
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import _parser
from llm_pipeline.cli.options import sentence

ROOT = Path(__file__).parents[1]
BESIDE = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "configs/REFERENCE.md": "reference/configuration.md",
    "benchmarks/gpu/FIGURES.md": "figures.md",
    "benchmarks/gpu/results/2026-11-23-h200-release.json": "h200-release.json",
    "benchmarks/gpu/results/2026-11-23-h200-release-8b.json": "h200-release-8b.json",
    "benchmarks/gpu/results/2026-11-24-h200-release-8b-killed.json": "h200-release-8b-killed.json",
    "benchmarks/gpu/results/2026-11-24-h200-quantize-8b.json": "h200-quantize-8b-2026-11-24.json",
    "benchmarks/gpu/results/2026-11-24-h200-release-8b.json": "h200-release-8b-2026-11-24.json",
    "benchmarks/gpu/results/2026-11-24-h200-vllm-serving.json": "h200-vllm-serving-2026-11-24.json",
    "benchmarks/gpu/results/2026-11-27-h200-scoring.json": "h200-scoring-2026-11-27.json",
    "benchmarks/gpu/results/2026-11-27-h200-mixture.json": "h200-mixture-2026-11-27.json",
    "benchmarks/gpu/results/2026-11-27-h200-tensor-parallel.json": "h200-tensor-parallel-2026-11-27.json",
    "benchmarks/gpu/results/2026-11-27-h200-two-targets.json": "h200-two-targets-2026-11-27.json",
    "benchmarks/gpu/results/2026-11-28-h200-cost.json": "h200-cost-2026-11-28.json",
    "benchmarks/gpu/results/2026-11-28-h200-pretrained.json": "h200-pretrained-2026-11-28.json",
    "benchmarks/gpu/results/2026-11-28-h200-fp8.json": "h200-fp8-2026-11-28.json",
    "benchmarks/gpu/results/2026-11-28-h200-golden.json": "h200-golden-2026-11-28.json",
    "benchmarks/gpu/results/2026-11-28-h200-golden-release.json": "h200-golden-release-2026-11-28.json",
    "benchmarks/gpu/results/2026-11-28-h200-killed-worker.json": "h200-killed-worker-2026-11-28.json",
    "benchmarks/gpu/results/2026-11-28-h200-promoted.json": "h200-promoted-2026-11-28.json",
    "benchmarks/gpu/results/2026-11-29-h200-engine-killed.json": "h200-engine-killed-2026-11-29.json",
    **{f".readme/{path.name}": f"images/{path.name}" for path in sorted((ROOT / ".readme").iterdir())},
}
"""Files of the repository outside docs/, and where they are on the site."""
_REPOSITORY_PATHS = {on_site: path for path, on_site in BESIDE.items()}
_LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *```\w+) [^\n]*$", re.MULTILINE)
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_METRICS = re.compile(r'_metrics\(\s*"(\w+)",\s*"([^"]+)",[^)]*?(gauge=True)?\s*\)')


# What MkDocs calls ----------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what does not lie in docs/."""
    for path, on_site in BESIDE.items():
        files.append(File.generated(config, on_site, content=(ROOT / path).read_bytes()))
    for on_site, text in generated_pages().items():
        files.append(File.generated(config, on_site, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs'
    """A page as Python-Markdown reads it, with links that hold on the site."""
    return four_spaces(_FENCE.sub(r"\1", links_of_the_site(markdown, page.file.src_uri)))


def links_of_the_site(markdown: str, on_site: str) -> str:
    """The page with its links, which are written for the repository, as they are on the site."""
    folder = posixpath.dirname(_REPOSITORY_PATHS.get(on_site, f"docs/{on_site}"))

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        target = BESIDE.get(path, path.removeprefix("docs/"))
        return link[1] + posixpath.relpath(target, posixpath.dirname(on_site) or ".") + link[3]

    return _LINK.sub(moved, markdown)


def four_spaces(markdown: str) -> str:
    """The page with four spaces for what belongs to an item of a list, where CommonMark takes the item's own width."""
    lines, widths, fence, apart = [], [], False, False
    for line in markdown.splitlines():
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if not text:
            apart = not fence
            lines.append("")
            continue
        while not fence and widths and indent < sum(widths):
            widths.pop()
        rest = max(indent - sum(widths), 0)
        begins = None if fence or rest else _ITEM.match(text)
        if begins and apart:
            lines.append("")  # else it would go on with the last paragraph of the item before
        lines.append(" " * (4 * len(widths) + rest) + text)
        if begins:
            apart = False
            widths.append(len(begins[0]))
        if text.startswith("```"):
            fence = not fence
    return "\n".join(lines) + "\n"


# Pages made from the code ---------------------------------------------------------------------------------------------


def generated_pages() -> dict[str, str]:
    """Text by path on the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/exit-codes.md": exit_codes_page(),
        "reference/metrics.md": metrics_page(),
    }


def commands_page() -> str:
    """Every command with its options, from the parser."""
    parts = ["# Commands and options", "", "From the parser; `llm-pipeline COMMAND --help` says the same.", ""]
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    summaries = {action.dest: action.help or "" for action in commands._choices_actions}  # noqa: SLF001
    for name, parser in commands.choices.items():
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        parts += [f"## {name}", "", sentence(summaries[name]), "", "```", usage, "```", ""]
        rows = [row for action in parser._actions if (row := _row(action, parser.prog))]  # noqa: SLF001
        parts += ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(parts)


def _row(action: argparse.Action, program: str) -> str:
    if action.help in (None, argparse.SUPPRESS) or isinstance(action, argparse._HelpAction):  # noqa: SLF001
        return ""
    shown = f" {action.metavar}" if isinstance(action.metavar, str) and action.option_strings else ""
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    meaning = (str(action.help) % {**vars(action), "prog": program}).replace("|", "\\|").replace(f"{ROOT}/", "")
    return f"| `{name}{shown}` | {meaning} |"


def exit_codes_page() -> str:
    """Every exit code, from the code."""
    table = [line for line in (entry.__doc__ or "").splitlines() if line.startswith("|")]
    return "\n".join([
        "# Exit codes",
        "",
        "The same for every command, and for the process of a stage. [Runbooks](../runbooks.md) say what to do.",
        "",
        "| code | name |",
        "|---|---|",
        *(f"| {code.value} | `{code.name}` |" for code in ExitCode),
        "",
        "A gate's verdict is the code of its name. Everything else:",
        "",
        *table,
        "",
    ])  # fmt: skip


def metrics_page() -> str:
    """The metrics that our served models export, from their source."""
    source = (ROOT / "llm_pipeline/serving/models/served_model.py").read_text()
    rows = [
        f"| `{name}` | {'gauge' if gauge else 'counter'} | {meaning} |"
        for name, meaning, gauge in _METRICS.findall(source)
    ]
    return "\n".join([
        "# Metrics",
        "",
        "Exported on Triton's metrics port by every model that this package serves, beside Triton's own `nv_*`:",
        "",
        "| name | type | meaning |",
        "|---|---|---|",
        *rows,
        "",
        "See also [alert rules and dashboards](../notifications.md#metrics).",
        "",
    ])  # fmt: skip
