"""Chat templates are rendered as Transformers renders them, and run in a sandbox."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from transformers.utils.chat_template_utils import render_jinja_template

from llm_pipeline.artifacts.model_rules import ChatFormat
from llm_pipeline.endpoint.protocol import ApiError, ChatRequest
from llm_pipeline.endpoint.template import ChatTemplate

TOOL = {"type": "function", "function": {"name": "weather", "description": "<b>ä</b>", "parameters": {"a": [1, None]}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
MESSAGES = [
    {"role": "system", "content": "be <brief> & kind"},
    {"role": "user", "content": [{"type": "text", "text": "hällo"}, {"type": "text", "text": "😀"}]},
    {"role": "assistant", "tool_calls": [CALL], "content": None},
    {"role": "tool", "content": "{}", "tool_call_id": "1"},
]
TOOLS = """
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {% generation %}{{ bos_token + m.role }}: {{ m.content | trim }}{% endgeneration %}
    {%- for call in m.tool_calls or [] %}
        {{- call.function.arguments | tojson }}{{ call.function.arguments.city }}
    {%- endfor %}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% if thinking is false %}<think></think>{% endif %}{% endif %}
"""
CHATML = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"


@pytest.mark.parametrize("template", [TOOLS, CHATML, "{{ strftime_now('%Y') }}{{ messages[0].content | upper }}"])
def test_a_prompt_is_what_transformers_makes_of_it(template):
    asked = ChatRequest(model="m", messages=MESSAGES, tools=[TOOL], chat_template_kwargs={"thinking": False})
    messages = [message.for_template() for message in asked.messages]
    (expected,), _ = render_jinja_template(
        [messages], tools=[TOOL], chat_template=template, add_generation_prompt=True, bos_token="<s>", thinking=False
    )
    chat = ChatTemplate(ChatFormat(template=template, special_tokens={"bos_token": "<s>"}), {"thinking": True})
    assert chat.render(messages, asked.tools, asked.chat_template_kwargs) == expected


QWEN = "{% for m in messages if m.role in ('system', 'user') %}{{ m.role }}: {{ m.content }}. {% endfor %}"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [(QWEN, "system: be brief. user: hi. "), ("{% if 'developer' %}{{ messages[0].role }}{% endif %}", "developer")],
)
def test_a_developers_message_is_the_systems_where_the_template_knows_no_developer(template, prompt):
    """Templates drop roles that they do not know, and the model never sees what it was told."""
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert ChatTemplate(ChatFormat(template=template), {}).render(messages, None, {}) == prompt


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages[7].content + 'x' }}",
        None,
    ],
)
def test_what_a_template_refuses_or_must_not_do_is_the_callers_error(template):
    with pytest.raises(ApiError) as refused:
        ChatTemplate(ChatFormat(template=template), {}).render([{"role": "user", "content": "a"}], None, {})
    assert refused.value.status == 400


def test_a_request_takes_no_place_of_its_messages():
    chat = ChatTemplate(ChatFormat(template="{{ messages[0].content }}"), {})
    with pytest.raises(ApiError, match="messages is not for chat_template_kwargs"):
        chat.render([{"role": "user", "content": "a"}], None, {"messages": []})
