"""A served model as lm-eval asks it: text through the endpoint that will face users."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

from llm_pipeline.base.errors import Transient, Unsupported
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import GenerationClient, GenerationRequest

_ATTEMPTS = 3
_REQUESTS_IN_FLIGHT = 32
_LONGEST_ANSWER_SECONDS = 120.0
_MAXIMUM_STOP_WORDS = 8
"""A request takes no more; what comes after another stop word is cut off by the scorer."""


class ServedModel(LM):  # type: ignore[misc]  # lm_eval is untyped
    """A model behind an endpoint.

    Args:
        endpoint: The server.
        tokenizer: The model's, which writes the prompts.
        begin: What the server's tokenizer puts before every prompt, and a prompt must not hold.
        chat_template_arguments: For the chat template.
    """

    def __init__(
        self, endpoint: Endpoint, tokenizer: Any, begin: str, chat_template_arguments: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._endpoint, self._begin = endpoint, begin
        self.tokenizer, self._arguments = tokenizer, dict(chat_template_arguments)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """As lm-eval's class for Transformers, which needs more packages: without a system turn that is refused."""
        options = {
            "tokenize": False, "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt, **self._arguments,
        }  # fmt: skip
        try:
            return str(self.tokenizer.apply_chat_template(chat_history, **options))
        except TemplateError:
            rest = [turn for turn in chat_history if turn["role"] != "system"]
            return str(self.tokenizer.apply_chat_template(rest, **options))

    request_options: ClassVar[dict[str, Any]] = {}

    def generate_until(self, requests: list[Instance]) -> None:
        """Texts, cut at the task's stop words, and whether each ended by length: for the hook of lm-eval's cache alone.

        Raises:
            Transient: The server does not answer a request, or answers it with an error, three times.
            Unsupported: More than a temperature is asked for.
        """
        asyncio.run(self._generate(requests))

    async def _generate(self, requests: list[Instance]) -> None:
        places = asyncio.Semaphore(_REQUESTS_IN_FLIGHT)
        async with GenerationClient.of(self._endpoint, timeout_seconds=_LONGEST_ANSWER_SECONDS) as client:

            async def ask(one: Instance) -> None:
                async with places:
                    answer = await self._ask(client, self._request(*one.args))
                self.cache_hook.add_partial("generate_until", one.args, answer)

            await asyncio.gather(*(ask(one) for one in requests))

    async def _ask(self, client: GenerationClient, request: GenerationRequest) -> tuple[str, bool]:
        error = ""
        for attempt in range(_ATTEMPTS):
            answer = await client.generate(request)
            if answer.ok:
                return answer.text, answer.finish_reason == "length"
            error = answer.error
            await asyncio.sleep(0.5 * 2**attempt)
        raise Transient(f"no usable answer in {_ATTEMPTS} attempts: {error}", where=self._endpoint.url)

    def _request(self, prompt: str, options: dict[str, Any]) -> GenerationRequest:
        wanted = normalize_gen_kwargs(options)
        if others := sorted(wanted.keys() - {"do_sample", "temperature", "until", "max_gen_toks"}):
            raise Unsupported(
                f"a served model is asked with a temperature alone, not with {', '.join(others)}",
                hint="leave them out of evaluation.generation, or of the task's file",
            )
        return GenerationRequest(
            prompt.removeprefix(self._begin),
            wanted["max_gen_toks"],
            temperature=wanted["temperature"] if wanted["do_sample"] else 0.0,
            stop=tuple(word for word in wanted["until"] if word)[:_MAXIMUM_STOP_WORDS],
            allow_empty=True,
        )

    def loglikelihood(self, requests: list[Instance]) -> Any:
        """Refuse: a server returns text, not the likelihood of a given one."""
        raise Unsupported(
            "a served model has no log-likelihoods",
            where=f"task {requests[0].task_name}",
            hint="list generative tasks only in served_tasks",
        )

    loglikelihood_rolling = loglikelihood
