"""How a task's documents become prompts: its examples, the system's instruction, the model's chat format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.accuracy.lm_eval_tasks import LoadedTasks
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import Evaluation, TaskOptions


@dataclass(frozen=True)
class PromptStyle:
    """How the prompts of one task are made.

    Attributes:
        few_shots: Solved examples in each prompt.
        chat: The chat format; None for plain text.
        system_instruction: Before every prompt; None for none.
        multiturn: In the chat format, examples are turns of their own.
    """

    few_shots: int
    chat: ChatTemplate | None
    system_instruction: str | None
    multiturn: bool

    @property
    def request_options(self) -> dict[str, Any]:
        """The same for lm-eval's `build_all_requests`."""
        if self.chat is None:
            return {"system_instruction": self.system_instruction}
        return {
            "system_instruction": self.system_instruction,
            "apply_chat_template": True,
            "fewshot_as_multiturn": self.multiturn,
            "chat_template": self.chat.render,
        }


def prompt_style(
    name: str, task: Any, loaded: LoadedTasks, evaluation: Evaluation, chat: ChatTemplate | None
) -> PromptStyle:
    """How a task is asked; the number of its examples is set in lm-eval's task.

    Raises:
        ConfigError: The task fixes its examples, or the model lacks the chat format that is asked for.
    """
    options = options_of(name, loaded, evaluation)
    wanted = evaluation.chat_template if options.chat_template is None else options.chat_template
    if wanted is True and chat is None:
        raise ConfigError(
            "the checkpoint's tokenizer has no chat template",
            where=f"task {name}",
            hint="set evaluation.chat_template to false, or to auto",
        )
    used = chat if wanted is True or (wanted == "auto" and task.OUTPUT_TYPE == "generate_until") else None
    if used is not None and evaluation.system_instruction:
        used.refuse_without_system_turn()
    return PromptStyle(
        few_shots=_few_shots(name, task, options.num_fewshot),
        chat=used,
        system_instruction=evaluation.system_instruction,
        multiturn=evaluation.fewshot_as_multiturn,
    )


def options_of(task: str, loaded: LoadedTasks, evaluation: Evaluation) -> TaskOptions:
    """What the release config says of a task, by its own name before that of a group or tag that it is in."""
    outer = [group.name for group in reversed(loaded.groups_of(task))]
    tags = [name for name, tasks in loaded.labels.items() if task in tasks]
    stated: dict[str, Any] = {}
    for name in (*tags, *outer, task):
        if name in evaluation.task_options:
            stated |= evaluation.task_options[name].model_dump(exclude_none=True)
    return TaskOptions(**stated)


def _few_shots(name: str, task: Any, wanted: int | None) -> int:
    own = task.get_config("num_fewshot")
    if own == 0 and wanted:
        raise ConfigError(
            f"task {name} takes no examples: its file says num_fewshot: 0",
            hint=f"leave evaluation.task_options.{name}.num_fewshot out",
        )
    number = int(own or 0) if wanted is None else wanted
    task.set_config(key="num_fewshot", value=number)
    return number
