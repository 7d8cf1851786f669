"""Chat templates as Transformers renders them, in Jinja's sandbox: from messages to the text of a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llm_pipeline.artifacts.model_rules import ChatFormat
from llm_pipeline.endpoint.protocol import ApiError


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; rendered it is what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - as its base has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class ChatTemplate:
    """The chat template of a checkpoint.

    Args:
        chat: Template and special tokens.
        arguments: Handed to it, unless a request says otherwise.

    Raises:
        TemplateError: It is not written in Jinja.
    """

    def __init__(self, chat: ChatFormat, arguments: Mapping[str, Any]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja's own escapes for HTML
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        self._template = None if chat.template is None else environment.from_string(chat.template)
        self._roles = {} if "developer" in (chat.template or "") else {"developer": "system"}
        """Templates pass over a role that they do not know."""
        self._known = {**chat.special_tokens, **arguments}

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, arguments: Mapping[str, Any]
    ) -> str:
        """The prompt of a chat, up to where the assistant begins to answer.

        Raises:
            ApiError: The model has no template, or it refuses the messages or the arguments.
        """
        if self._template is None:
            raise ApiError("the model has no chat template; use /v1/completions", param="messages")
        messages = [{**message, "role": self._roles.get(message["role"], message["role"])} for message in messages]
        given = {"messages": messages, "tools": tools or None, "documents": None, "add_generation_prompt": True}
        if taken := sorted(arguments.keys() & given.keys()):
            raise ApiError(f"{taken[0]} is not for chat_template_kwargs", param="chat_template_kwargs")
        try:
            return self._template.render({**self._known, **arguments, **given})
        except Exception as error:  # a template is a program, and fails on what it did not expect
            raise ApiError(f"the chat template refuses this: {error}"[:400], param="messages") from error


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
