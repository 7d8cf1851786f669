"""What a request asks of the engine: its own words, then the model's defaults, and nothing that changes nothing."""

from __future__ import annotations

import json

import pytest

from llm_pipeline.endpoint.protocol import HARMLESS, ApiError, ChatRequest, CompletionRequest, read

ALL = (
    "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs",
    "json_schema",
)  # fmt: skip
DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
PLAIN = {"max_tokens": -1, "stream": False}


def chat(**fields):
    return read(
        ChatRequest, json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}).encode()
    )


@pytest.mark.parametrize(
    ("asked", "defaults", "inputs"),
    [
        ({}, {}, {"temperature": 1.0}),
        ({}, DEFAULTS, {"temperature": 0.6, "top_p": 0.9, "top_k": 20}),
        ({"top_p": 1, "top_k": -1}, DEFAULTS, {"temperature": 0.6}),
        ({"temperature": 0}, DEFAULTS, {"temperature": 0}),
        ({"temperature": 0, "seed": 1, "presence_penalty": 1}, {}, {"temperature": 0, "presence_penalty": 1}),
        ({"seed": -5, "min_p": 0.1}, {}, {"temperature": 1.0, "seed": -5, "min_p": 0.1}),
        ({"max_tokens": 3, "max_completion_tokens": 4}, {}, {"temperature": 1.0, "max_tokens": 4}),
        ({"logprobs": True}, {}, {"temperature": 1.0, "logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {}, {"temperature": 1.0, "logprobs": 3}),
        ({"response_format": {"type": "json_object"}}, {}, {"temperature": 1.0, "json_schema": "{}"}),
        ({"response_format": {"type": "text"}, "stop": "x"}, {}, {"temperature": 1.0, "stop": ["x"]}),
    ],
)
def test_the_engine_is_told_what_changes_the_answer(asked, defaults, inputs):
    assert chat(**asked).inputs(defaults, ALL) == PLAIN | inputs


def test_defaults_that_an_engine_cannot_follow_are_left_out_and_wishes_refused():
    assert chat().inputs(DEFAULTS, ()) == PLAIN | {"temperature": 0.6}
    for field, value in (("top_k", 4), ("response_format", {"type": "json_object"}), ("logprobs", True)):
        with pytest.raises(ApiError) as refused:
            chat(**{field: value}).inputs({}, ())
        assert refused.value.param == field


@pytest.mark.parametrize(
    ("prompt", "read_as"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])]
)
def test_a_prompt_is_text_or_tokens_one_or_several(prompt, read_as):
    assert read(CompletionRequest, json.dumps({"model": "m", "prompt": prompt}).encode()).prompt == read_as


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [True], [-1], [1.5], None, {"a": 1}])
def test_anything_else_is_no_prompt(prompt):
    with pytest.raises(ApiError, match="prompt"):
        read(CompletionRequest, json.dumps({"model": "m", "prompt": prompt}).encode())


def test_of_a_message_is_read_what_templates_know_and_reasoning_by_vllms_name_too():
    said = {"reasoning": "hm", "provider_specific_fields": {"a": 1}, "thinking_blocks": [], "refusal": None}
    (message,) = chat(messages=[{"role": "assistant", "content": None, **said}]).messages
    assert message.for_template() == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_what_the_openai_package_can_ask_is_known_or_refused_on_purpose():
    asked = pytest.importorskip("openai.types.chat.completion_create_params").CompletionCreateParamsBase.__annotations__
    assert asked.keys() - ChatRequest.model_fields - HARMLESS == {
        "audio", "function_call", "functions", "modalities", "moderation", "reasoning_effort", "verbosity",
        "web_search_options",
    }  # fmt: skip


def tool(name, **parameters):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


WEATHER = tool("weather", properties={"city": {"$ref": "#/$defs/city"}}, **{"$defs": {"city": {"type": "string"}}})
NAMED = {"type": "function", "function": {"name": "clock"}}


@pytest.mark.parametrize(
    ("choice", "names", "most"),
    [
        ({"tool_choice": "required"}, ["weather", "clock"], None),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ["weather", "clock"], 1),
        ({"tool_choice": NAMED}, ["clock"], 1),
    ],
)
def test_calls_that_must_be_are_a_schema_whose_definitions_are_found(choice, names, most):
    document = json.loads(chat(tools=[WEATHER, tool("clock")], **choice).inputs({}, ALL)["json_schema"])
    assert (document["minItems"], document.get("maxItems")) == (1, most)
    calls = [call["properties"] for call in document["items"]["anyOf"]]
    assert [call["name"]["enum"] for call in calls] == [[name] for name in names]
    if "weather" in names:
        assert (document["$defs"], "$defs" in calls[0]["arguments"]) == ({"city": {"type": "string"}}, False)


@pytest.mark.parametrize(
    "asked",
    [
        {"tool_choice": "required"},
        {"tool_choice": NAMED, "tools": [WEATHER]},
        {"tool_choice": "required", "tools": [WEATHER], "response_format": {"type": "json_object"}},
    ],
)
def test_calls_that_cannot_be_are_refused(asked):
    with pytest.raises(ApiError, match="name a tool") as refused:
        chat(**asked)
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize("parameters", [[1], "x", {"$defs": [1]}, {"definitions": None}])
def test_parameters_that_are_no_schema_are_refused(parameters):
    odd = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    with pytest.raises(ApiError, match="a JSON schema of an object"):
        chat(tools=[odd], tool_choice="required")


def test_an_engine_that_follows_no_schema_refuses_to_be_made_to_call():
    with pytest.raises(ApiError, match="not supported by the engine") as refused:
        chat(tools=[WEATHER], tool_choice="required").inputs({}, ())
    assert refused.value.param == "tool_choice"
