"""OpenAI's own client against the endpoint, before a real engine on a real tritonserver."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from free_ports import free_ports
from served import cpu_target, metric
from waiting import until

pytest.importorskip("tritonclient")
openai = pytest.importorskip("openai")
import tokenizers

from llm_pipeline.artifacts.endpoint_description import EndpointDescription
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.model_rules import ChatFormat, SamplingDefaults
from llm_pipeline.base.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CONTEXT = 128
MODEL = "organisation/tiny"
CHAT = ChatFormat(
    template=(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{% if loud %}LOUD{% endif %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    special_tokens={"bos_token": "<s>"},
)
HELLO = [{"role": "user", "content": "the cat sees"}]


@pytest.fixture(scope="module")
def version(tiny_engine, package, tmp_path_factory):
    """The version directory of a repository whose engine has a chat format and ends no answer by itself."""
    directory = tmp_path_factory.mktemp("endpoint")
    engine = Path(shutil.copytree(tiny_engine, directory / "engine"))
    description = EngineDescription.read(engine)
    rules = description.rules.model_copy(update={"chat": CHAT, "sampling": SamplingDefaults(temperature=0.0)})
    description.model_copy(update={"rules": rules}).write(engine)
    return package(engine, cpu_target(8, 64, 128), model=MODEL) / "llm" / "1"


@pytest.fixture(scope="module")
def triton(version, start):
    return start(version.parents[1])


@contextlib.contextmanager
def serving(version: Path, grpc: str, *options: str, log: Path):
    """The endpoint's process, and its URL."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "llm_pipeline.endpoint", "--port", str(port), "--triton", grpc]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--model", str(version), *options], env=environment, stdout=output, stderr=output
        )
    url = f"http://127.0.0.1:{port}"
    try:
        assert wait_until(lambda: get(url + "/health")[0] in {200, 503}, 120), log.read_text()
        yield url, process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in {0, -signal.SIGTERM}, log.read_text()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "endpoint.log"


@pytest.fixture(scope="module")
def url(version, triton, log):
    with serving(version, f"127.0.0.1:{triton.ports.http}", log=log) as (url, _):
        yield url


@pytest.fixture(scope="module")
def encoded(tiny_engine):
    """Tokens of a text, as the checkpoint's own tokenizer has them."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_engine / "tokenizer.json"))
    return lambda text, *, special: tokenizer.encode(text, add_special_tokens=special).ids


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def get(url: str) -> tuple[int, dict]:
    try:
        answer = httpx.get(url, timeout=10)
    except httpx.TransportError:
        return 0, {}
    return answer.status_code, answer.json()


def post(url: str, body: bytes | dict, path: str = "/v1/chat/completions") -> tuple[int, dict]:
    """Status and error of what is refused."""
    answer = httpx.post(url + path, content=body if isinstance(body, bytes) else json.dumps(body), timeout=60)
    return answer.status_code, answer.json()["error"]


def chat(client, messages=HELLO, **options):
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "max_tokens": 16, **options})


def complete(client, prompt="the cat sees", **options):
    return client.completions.create(**{"model": MODEL, "prompt": prompt, "max_tokens": 16, **options})


def streamed(chunks) -> str:
    """The text of a chat's stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_models_are_listed_under_the_name_of_the_release(client, url):
    (model,) = client.models.list()
    assert model.id == MODEL
    assert model.max_model_len == CONTEXT
    assert client.models.retrieve(MODEL).id == MODEL
    assert get(f"{url}/health") == (200, {"status": "ready"})


def test_a_chat_is_the_completion_of_its_rendered_template(client, encoded):
    answer = chat(client, extra_body={"ignore_eos": True})
    tokens = encoded("[user]the cat sees[/][assistant]", special=False)
    rendered = complete(client, tokens, extra_body={"ignore_eos": True})
    assert answer.choices[0].message.content == rendered.choices[0].text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == rendered.usage.prompt_tokens == len(tokens)
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    assert answer.system_fingerprint == "e" * 12
    parts = [{"role": "user", "content": [{"type": "text", "text": "the cat sees"}]}]
    assert chat(client, parts, extra_body={"ignore_eos": True}).choices[0].message == answer.choices[0].message
    louder = chat(client, extra_body={"ignore_eos": True, "chat_template_kwargs": {"loud": True}})
    assert louder.usage.prompt_tokens > answer.usage.prompt_tokens


def test_the_documented_chat_is_answered(url):
    block = re.search(r"^```python\n(.*?)^```", (ROOT / "docs/requests.md").read_text(), re.MULTILINE | re.DOTALL)
    code = block[1].replace("http://127.0.0.1:18000", url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_stream_is_the_whole_answer_and_counts_its_tokens(client):
    whole = chat(client, extra_body={"ignore_eos": True})
    chunks = list(chat(client, extra_body={"ignore_eos": True}, stream=True, stream_options={"include_usage": True}))
    assert streamed(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 5
    assert all(chunk.usage is None for chunk in chunks[:-1])
    texts = [chunk.choices[0].text for chunk in complete(client, stream=True, extra_body={"ignore_eos": True})]
    assert "".join(texts) == complete(client, extra_body={"ignore_eos": True}).choices[0].text


def test_an_answer_without_max_tokens_takes_what_is_left(client):
    answer = chat(client, max_tokens=openai.omit, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == CONTEXT
    assert complete(client, max_tokens=openai.omit, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


def test_an_answer_ends_before_its_stop_word(client):
    full = chat(client, extra_body={"ignore_eos": True}).choices[0].message.content
    word = full[6:9]
    for stop in (word, ["never there", word]):
        answer = chat(client, stop=stop, extra_body={"ignore_eos": True})
        assert answer.choices[0].message.content == full[: full.index(word)]
        assert answer.choices[0].finish_reason == "stop"
        assert (
            streamed(chat(client, stop=stop, stream=True, extra_body={"ignore_eos": True})) == full[: full.index(word)]
        )


def test_characters_of_several_tokens_come_whole(client):
    messages = [{"role": "user", "content": "é 日本 😀 \u2028"}]
    whole = chat(client, messages, max_tokens=60, extra_body={"ignore_eos": True})
    assert streamed(chat(client, messages, max_tokens=60, stream=True, extra_body={"ignore_eos": True})) == (
        whole.choices[0].message.content
    )


def test_several_prompts_and_answers_come_in_their_order(client):
    prompts = ["the cat", "two old trees", "seven dogs"]
    alone = [complete(client, prompt, extra_body={"ignore_eos": True}) for prompt in prompts]
    answer = complete(client, prompts, n=2, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [one.choices[0].text for one in alone for _ in range(2)]
    assert answer.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    assert answer.usage.completion_tokens == 6 * 16
    texts = [""] * 6
    for chunk in complete(client, prompts, n=2, stream=True, extra_body={"ignore_eos": True}):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


def test_a_seed_draws_the_same_answers_again_and_each_of_n_another(client):
    drawn = {"temperature": 1.5, "seed": 7, "top_p": 0.9, "extra_body": {"ignore_eos": True, "top_k": 50}}
    answers = [choice.message.content for choice in chat(client, n=3, **drawn).choices]
    assert [choice.message.content for choice in chat(client, n=3, **drawn).choices] == answers
    assert chat(client, **{**drawn, "seed": 8}).choices[0].message.content == answers[1]
    assert len(set(answers)) == 3


def test_logprobs_of_a_chat_are_those_of_its_tokens(client):
    told = {"logprobs": True, "top_logprobs": 3, "extra_body": {"ignore_eos": True}}
    (choice,) = chat(client, **told).choices
    tokens = choice.logprobs.content
    assert len(tokens) == 16
    assert b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace") == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob <= 0  # greedy
        assert token.top_logprobs[1].logprob >= token.top_logprobs[2].logprob
    chunks = [chunk for chunk in chat(client, stream=True, **told) if chunk.choices[0].logprobs]
    streamed = [token for chunk in chunks for token in chunk.choices[0].logprobs.content]
    assert [token.logprob for token in streamed] == pytest.approx([token.logprob for token in tokens], abs=1e-4)


def test_an_echoed_prompt_has_its_logprobs(client, encoded):
    tokens = encoded("the cat sees", special=True)
    echo = complete(client, tokens, echo=True, max_tokens=1, logprobs=1, extra_body={"ignore_eos": True}).choices[0]
    assert echo.text.startswith("the cat sees")
    assert len(echo.logprobs.tokens) == len(echo.logprobs.token_logprobs) == len(tokens) + 1
    assert echo.logprobs.token_logprobs[0] is None
    assert echo.logprobs.top_logprobs[0] is None
    assert all(logprob <= 0 for logprob in echo.logprobs.token_logprobs[1:])
    assert max(echo.logprobs.top_logprobs[-1].values()) == echo.logprobs.token_logprobs[-1]  # greedy
    none = complete(client, tokens, echo=True, max_tokens=0, logprobs=1)
    assert none.choices[0].logprobs.token_logprobs == echo.logprobs.token_logprobs[:-1]
    assert none.usage.completion_tokens == 0
    with pytest.raises(openai.BadRequestError):
        complete(client, max_tokens=0)


def test_an_answer_follows_its_json_schema(client):
    schema = {
        "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "boolean"}},
        "required": ["colour", "n"], "additionalProperties": False,
    }  # fmt: skip
    asked = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    said = json.loads(chat(client, response_format=asked, max_tokens=80).choices[0].message.content)
    assert said["colour"] in {"red", "blue"}
    assert isinstance(said["n"], bool)
    text = streamed(chat(client, response_format={"type": "json_object"}, max_tokens=20, stream=True))
    assert text.lstrip().startswith("{")
    asked["json_schema"]["schema"] = {"type": "nonsense"}
    with pytest.raises(openai.BadRequestError, match="response_format: Unsupported type") as refused:
        chat(client, response_format=asked)
    assert refused.value.param == "response_format"


def test_sixty_four_at_once_are_all_answered_as_alone(client, url):
    async def together():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as many:

            async def one(number):
                messages = [{"role": "user", "content": f"the cat sees {number % 4}"}]
                options = {"model": MODEL, "messages": messages, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
                if number % 2:
                    return (await many.chat.completions.create(**options)).choices[0].message.content
                stream = await many.chat.completions.create(**options, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(64)))

    answers = asyncio.run(together())
    for number in range(4):
        assert len(set(answers[number::4])) == 1
    assert len(set(answers)) == 4


def test_a_client_that_leaves_ends_its_request(client, triton, url):
    before = metric(triton, 'llm_requests_total{outcome="cancelled"')
    long = {"extra_body": {"ignore_eos": True}, "max_tokens": 100}

    def noticed() -> bool:  # an answer this short may be complete before it is noticed
        stream = complete(client, "the cat", stream=True, **long)
        next(iter(stream))
        stream.close()
        with contextlib.suppress(openai.APITimeoutError):
            complete(client, ["the cat"] * 8, timeout=0.05, **long)
        until(lambda: metric(triton, "llm_active_requests") == 0, 60)
        return metric(triton, 'llm_requests_total{outcome="cancelled"') >= before + 2

    until(noticed, 30)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": 4294967301}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"n": 0}, "n"),
        ({"nonsense": 1}, "nonsense"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"top_p": 0, "temperature": 1}, "top_p"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"stop": [""]}, "stop"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_cannot_be_done_is_refused_by_its_name(change, param, url):
    status, error = post(url, {"model": MODEL, "messages": HELLO, "max_tokens": 4, **change})
    assert (status, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"


def test_what_changes_no_answer_is_ignored(client):
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": True, "top_p": 1.0, "frequency_penalty": 0, "seed": 1}
    nulls = {"logprobs": None, "top_k": None, "tools": None, "unheard_of": None}
    answer = chat(client, extra_body={"ignore_eos": True, **harmless, **nulls})
    assert answer == chat(client, extra_body={"ignore_eos": True}).model_copy(
        update={"id": answer.id, "created": answer.created}
    )


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"\xff", b"[" * 200_000, b'{"a":' * 100_000, b'{"model": "\\ud800"}', b'{"top_p": NaN}',
        b'{"temperature": 1e999, "model": "m", "messages": []}', b'{"max_tokens": ' + b"9" * 100_000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused_at_once_and_hurts_nobody(body, url, client):
    started = time.monotonic()
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert post(url, body, path)[0] == 400
    assert time.monotonic() - started < 2
    assert chat(client, max_tokens=1).choices


def test_errors_are_those_that_openai_clients_know(client, url):
    with pytest.raises(openai.NotFoundError, match="nobody") as unknown:
        chat(client, model="nobody")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as longer:
        chat(client, [{"role": "user", "content": "the cat sees a red moon " * 100}])
    assert longer.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="prompt: tokens are in") as unknown:
        complete(client, [10**6])
    assert unknown.value.param == "prompt"
    assert post(url, b" " * 2_000_000)[0] == 413
    assert post(url, {}, "/v1/nothing")[0] == 404
    assert get(f"{url}/v1/completions")[0] == 405


def test_a_full_queue_is_told_to_come_again(url):
    refused = []

    async def flood():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as many:
            options = {"model": MODEL, "prompt": "a", "max_tokens": 100, "extra_body": {"ignore_eos": True}}
            return await asyncio.gather(
                *(many.completions.create(**options) for _ in range(120)), return_exceptions=True
            )

    def is_full() -> bool:  # on a busy host a flood may come no faster than it is answered
        refused.extend(answer for answer in asyncio.run(flood()) if isinstance(answer, BaseException))
        return bool(refused)

    until(is_full, 60)
    assert {type(answer) for answer in refused} == {openai.RateLimitError}
    assert {answer.response.headers["retry-after"] for answer in refused} == {"1"}


def test_no_prompt_is_in_the_log(url, log):
    assert post(url, {"model": MODEL, "messages": [{"role": "user", "content": "secret " * 200}]})[0] == 400
    assert "secret" not in log.read_text()


def test_without_a_server_requests_are_answered_503_and_the_process_drains(version, tmp_path):
    with serving(version, "127.0.0.1:9", "--workers", "2", log=tmp_path / "log") as (url, _):
        assert get(f"{url}/health")[0] == 503
        status, error = post(url, {"model": MODEL, "messages": HELLO})
        assert (status, error["type"]) == (503, "service_unavailable_error")


def test_packaging_says_what_the_endpoint_needs(version):
    about = EndpointDescription.model_validate_json((version / "endpoint.json").read_bytes())
    assert "json_schema" in about.features
    assert about.model_dump(exclude={"features"}) == {
        "model": MODEL, "release": "e" * 12, "chat": CHAT.model_dump(), "chat_template_arguments": {},
        "sampling": {"temperature": 0.0}, "maximum_tokens_per_request": CONTEXT, "maximum_sequences": 8,
    }  # fmt: skip
