"""A model's chat format, kept beside the baseline's evaluation so that the served lane writes the same prompts.

The served lane has no tokenizer: it sends text. So the format is kept as text too, with the few special tokens that
templates name, and prompts are rendered by Transformers in both lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen

CHAT_TEMPLATE_FILE = "chat_template.json"
_DAY = datetime(2024, 7, 26, tzinfo=UTC)
"""For templates that print the date, as baseline and candidate are asked on different days: Llama 3.1's default."""


class ChatTemplate(Frozen):
    """How a conversation becomes a prompt.

    Attributes:
        template: In Jinja's language.
        tokens: Special tokens by the name that templates use.
        begin_token: What the tokenizer itself puts before every prompt, and the template must not put there again;
            empty for nothing.
    """

    template: str
    tokens: dict[str, str]
    begin_token: str = ""

    @classmethod
    def of(cls, tokenizer: Any) -> ChatTemplate | None:
        """The format of a tokenizer of Transformers; None where it has none."""
        if not getattr(tokenizer, "chat_template", None):
            return None
        begin = tokenizer.bos_token_id
        adds = begin is not None and tokenizer("a")["input_ids"][:1] == [begin]
        return cls(
            template=tokenizer.get_chat_template(),
            tokens={name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
            begin_token=str(tokenizer.bos_token) if adds else "",
        )

    @classmethod
    def read(cls, directory: Path) -> ChatTemplate | None:
        """The chat format of an evaluation; None if it had none.

        Raises:
            IntegrityError: The file is damaged.
        """
        path = directory / CHAT_TEMPLATE_FILE
        return load_record(cls, path, "no readable chat template") if path.exists() else None

    def write(self, directory: Path) -> None:
        """Write it as JSON into an evaluation's directory."""
        (directory / CHAT_TEMPLATE_FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @property
    def digest(self) -> str:
        """Equal only for formats that write the same prompts."""
        return sha256_json(self.model_dump())

    def render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        """A conversation as a prompt.

        As in lm-eval, a template that refuses a system turn gets the conversation without it.

        Args:
            messages: Turns with `role` and `content`.
            add_generation_prompt: End with the opening of the model's turn; else go on with the last turn.

        Raises:
            ConfigError: The template refuses the conversation.
        """
        from jinja2.exceptions import TemplateError

        try:
            return self._rendered(messages, add_generation_prompt)
        except TemplateError as error:
            rest = [one for one in messages if one["role"] != "system"]
            if len(rest) == len(messages):
                raise _refused(error) from error
        try:
            return self._rendered(rest, add_generation_prompt)
        except TemplateError as error:
            raise _refused(error) from error

    def _rendered(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(
            conversations=[[dict(one) for one in messages]],
            chat_template=self.template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            date_string=_DAY.strftime("%d %b %Y"),
            strftime_now=_DAY.strftime,
            **self.tokens,
        )
        return str(rendered[0]).removeprefix(self.begin_token)


def _refused(error: Exception) -> ConfigError:
    return ConfigError(
        f"the model's chat template refuses a prompt: {error}",
        hint="set evaluation.chat_template: false",
    )
