"""lm-eval on a serving endpoint: the same questions, asked as text through the server that will face users.

Only generative tasks: a served model returns text, not the likelihood of a given one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from llm_pipeline.accuracy.questions import Questions  # isort: skip  # it keeps the libraries below offline

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.base.errors import Transient, Unsupported
from llm_pipeline.base.progress import Progress
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.release import Evaluation
from llm_pipeline.serving.client import GenerationClient, GenerationRequest

_ATTEMPTS = 3
_REQUESTS_IN_FLIGHT = 32
_LONGEST_ANSWER_SECONDS = 120.0
_MAXIMUM_STOP_WORDS = 8
"""A request takes no more; what comes after another stop word is cut off here."""
_VERSIONS = ("lm_eval", "aiohttp")


class ServedModel(LM):  # type: ignore[misc]  # lm_eval is untyped
    """A model behind an endpoint, as lm-eval sees it."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self.progress = Progress("evaluating", 0, "requests")

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:  # noqa: ARG002
        """Greedy texts, cut at the task's stop words.

        Raises:
            Transient: The server does not answer a request, or answers it with an error, three times.
            Unsupported: The task samples: two evaluations of it would not compare item by item.
        """
        asked = [_generation_request(*instance.args) for instance in requests]
        texts = asyncio.run(self._generate(asked))
        return [
            postprocess_generated_text(text, normalize_gen_kwargs(instance.args[1])["until"], None)
            for text, instance in zip(texts, requests, strict=True)
        ]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:  # noqa: ARG002
        """Refuse: a server returns text, not the likelihood of a given one.

        Raises:
            Unsupported: Always.
        """
        raise _no_likelihood(str(requests[0].task_name if requests else ""))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:  # noqa: ARG002
        """Refuse: a server returns text, not the likelihood of a given one.

        Raises:
            Unsupported: Always.
        """
        raise _no_likelihood(str(requests[0].task_name if requests else ""))

    async def _generate(self, requests: Sequence[GenerationRequest]) -> list[str]:
        places = asyncio.Semaphore(_REQUESTS_IN_FLIGHT)
        async with GenerationClient.of(self._endpoint, timeout_seconds=_LONGEST_ANSWER_SECONDS) as client:

            async def ask(request: GenerationRequest) -> str:
                async with places:
                    answer = await _ask(client, request, self._endpoint.url)
                self.progress.advance(1)
                return answer

            return list(await asyncio.gather(*(ask(request) for request in requests)))


def served_questions(
    task_directory: Path | None, evaluation: Evaluation, chat: ChatTemplate | None = None, data: Path | None = None
) -> Questions:
    """The items of the served tasks; the arguments are those of `Questions.load`.

    Raises:
        Unsupported: A task is not a generative one.
        ConfigError: A task is unknown or its data are unreadable.
    """
    questions = Questions.load(task_directory, evaluation, evaluation.served_tasks, chat, data)
    for name, task in questions.tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise _no_likelihood(name)
    return questions


def served_versions() -> dict[str, str]:
    """Versions of the harness and of the client."""
    return {name: metadata.version(name) for name in _VERSIONS}


async def _ask(client: GenerationClient, request: GenerationRequest, endpoint: str) -> str:
    error = ""
    for attempt in range(_ATTEMPTS):
        answer = await client.generate(request)
        if answer.ok:
            return answer.text
        error = answer.error
        await asyncio.sleep(0.5 * 2**attempt)
    raise Transient(f"no usable answer in {_ATTEMPTS} attempts: {error}", where=endpoint)


def _generation_request(prompt: str, options: dict[str, Any]) -> GenerationRequest:
    wanted = normalize_gen_kwargs(options)
    if wanted["do_sample"]:
        raise Unsupported("the task samples its answers", hint="set do_sample: false: only greedy answers compare")
    stop = tuple(word for word in wanted["until"] if word)[:_MAXIMUM_STOP_WORDS]
    return GenerationRequest(prompt, wanted["max_gen_toks"], stop=stop, allow_empty=True)


def _no_likelihood(task: str) -> Unsupported:
    return Unsupported(
        "a served model has no log-likelihoods", where=f"task {task}", hint="list generative tasks only in served_tasks"
    )
