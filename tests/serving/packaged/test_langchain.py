"""LangChain's chat model on a real place: what it asks for, and what it makes of our answers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from test_openai_endpoint import MODEL, log, openai, triton, url, version  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

PACKAGES = (
    "langchain-openai==1.7.4", "langchain-core==1.8.3", "langchain-protocol==0.0.20", "langsmith==0.15.1",
    "distro==1.9.0", "jsonpatch==1.48", "jsonpointer==3.12", "orjson==3.13.0", "regex==2026.11.19",
    "requests-toolbelt==1.0.0", "tiktoken==0.14.0", "uuid_utils==0.19.0", "xxhash==4.1.0",
)  # fmt: skip
"""What control lacks of LangChain; 40 MB."""


@pytest.fixture(scope="module")
def chat_openai(tmp_path_factory):
    """LangChain's class, of packages of its own."""
    directory = tmp_path_factory.mktemp("langchain")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory)]
    subprocess.run([*pip, *PACKAGES], check=True)
    sys.path.append(str(directory))
    from langchain_openai import ChatOpenAI

    yield ChatOpenAI
    sys.path.remove(str(directory))


@pytest.fixture
def model(chat_openai, url):  # noqa: F811
    def make(**options):
        more = {"ignore_eos": True, **options.pop("extra_body", {})}
        common = {"base_url": f"{url}/v1", "api_key": "none", "model": MODEL, "max_retries": 0, "temperature": 0}
        return chat_openai(**{**common, "max_tokens": 16, **options}, extra_body=more)

    return make


def test_a_chat_is_answered_whole_and_in_pieces(model):
    turns = [("system", "be brief: é 日本 😀"), ("human", "the cat sees")]
    whole = model().invoke(turns)
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 16
    assert whole.response_metadata["finish_reason"] == "length"
    assert whole.response_metadata["model_name"] == MODEL
    pieces = list(model(stream_usage=True).stream(turns))
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert joined.content == whole.content
    assert len(pieces) > 5
    assert joined.usage_metadata == whole.usage_metadata


def test_it_stops_draws_by_a_seed_and_tells_likelihoods(model):
    full = model().invoke("the cat sees").content
    assert model(stop=[full[6:9]]).invoke("the cat sees").content == full[: full.index(full[6:9])]
    drawn = model(temperature=1.5, seed=7, top_p=0.9)
    assert drawn.invoke("the cat sees").content == drawn.invoke("the cat sees").content
    told = model(logprobs=True, top_logprobs=2).invoke("the cat sees").response_metadata["logprobs"]["content"]
    assert len(told) == 16
    assert all(len(token["top_logprobs"]) == 2 for token in told)


def test_it_answers_by_a_schema(model):
    schema = {
        "title": "thing", "description": "a thing", "type": "object", "properties": {"n": {"type": "boolean"}},
        "required": ["n"], "additionalProperties": False,
    }  # fmt: skip
    asked = model(max_tokens=60, extra_body={"ignore_eos": False})
    said = asked.with_structured_output(schema, method="json_schema").invoke("the cat sees")
    assert isinstance(said["n"], bool)


def test_tools_reach_the_chat_template(model):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    short = model(max_tokens=1)
    plain, tooled = short.invoke("the cat"), short.bind_tools([tool]).invoke("the cat")
    added = tooled.usage_metadata["input_tokens"] - plain.usage_metadata["input_tokens"]
    assert added > len(json.dumps(tool)) / 8


def test_a_batch_is_answered_as_each_alone(model):
    prompts = [f"the cat sees {number}" for number in range(16)]
    answers = [answer.content for answer in model().batch(prompts)]
    assert answers[3] == model().invoke(prompts[3]).content
    assert len(set(answers)) > 8


def test_errors_are_those_that_it_knows(model):
    with pytest.raises(openai.BadRequestError, match="exceed"):
        model().invoke("the cat sees a red moon " * 100)
    with pytest.raises(openai.NotFoundError):
        model(model="nobody").invoke("a")
