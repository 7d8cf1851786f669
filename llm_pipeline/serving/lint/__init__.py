"""A linter for any Triton model repository.

`lint_repository_directory` names every mistake that it can see on disk: what the server refuses at load, what it
reads otherwise than meant, and what makes an LLM slower than it is. It needs no server and no GPU. The rules follow
Triton's own checks (triton core) and the recorded templates of TensorRT-LLM's models.
"""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.serving.lint.code_rules import code_rules
from llm_pipeline.serving.lint.engine_rules import engine_rules, set_rules
from llm_pipeline.serving.lint.ensemble_rules import ensemble_rules
from llm_pipeline.serving.lint.llmapi_rules import llmapi_rules
from llm_pipeline.serving.lint.model_rules import batch_io_rules, file_rules, instance_rules, model_rules
from llm_pipeline.serving.lint.repository import Finding, read_repository
from llm_pipeline.serving.lint.scheduling_rules import batching_rules, sequence_rules
from llm_pipeline.serving.lint.template_rules import template_rules, text_rules

__all__ = ["Finding", "lint_repository_directory"]

_RULES = (
    text_rules,
    model_rules,
    batch_io_rules,
    batching_rules,
    sequence_rules,
    instance_rules,
    file_rules,
    code_rules,
    ensemble_rules,
    engine_rules,
    template_rules,
    llmapi_rules,
    set_rules,
)


def lint_repository_directory(path: Path) -> tuple[Finding, ...]:
    """Every mistake in the model repository in a directory, in the order of its models, files and lines.

    Raises:
        ConfigError: There is no repository in `path`.
    """
    repository = read_repository(path)
    findings = {
        finding for model in repository.models.values() for rules in _RULES for finding in rules(model, repository)
    }
    return tuple(sorted(findings, key=lambda finding: (finding.model, finding.file, finding.line or 0, str(finding))))
