"""A served model as lm-eval asks it: its class `local-completions`, before the endpoint that will face users.

Prompts are sent as text, and the server's tokenizer reads them. Likelihoods are of tokens that lm-eval sends, and the
server echoes them with their logprobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.models.utils import normalize_gen_kwargs

from llm_pipeline.accuracy.scorer import CheckedModel, begin_token, template_arguments
from llm_pipeline.base.errors import ConfigError, PipelineError, Transient, Unsupported
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.release import CheckpointEvaluation
from llm_pipeline.serving.completions import COMPLETIONS_PATH, header_secrets, refusal_text, shown
from llm_pipeline.serving.endpoint_access import tls_context

_REQUESTS_IN_FLIGHT = 32
_ATTEMPTS = 3
_MAXIMUM_STOP_WORDS = 8
"""A request takes no more; what comes after another stop word is cut off by the scorer."""
_DENIED = ("HTTP 401", "HTTP 403")
_KEY = "the variable that the endpoint names as api_key_variable holds another key than the server wants"
_PLAIN = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
"""Said with every request: a server takes what is left out from the model's generation_config.json."""
_PLAIN_DRAWS = {"top_k": -1, "min_p": 0.0}


class ServedModel(CheckedModel, LocalCompletionsAPI):  # type: ignore[misc]  # lm_eval is untyped
    """A model behind OpenAI's API.

    Args:
        endpoint: The server.
        tokenizer: The model's, of Transformers.
        evaluation: Length, and what the chat template is given.
    """

    def __init__(self, endpoint: Endpoint, tokenizer: Any, evaluation: CheckpointEvaluation) -> None:
        headers = endpoint.headers()
        super().__init__(
            model=endpoint.openai_model,
            base_url=endpoint.url.rstrip("/") + COMPLETIONS_PATH,
            header={"Accept-Encoding": "identity", **headers},  # without any, OPENAI_API_KEY would be sent
            verify_certificate=tls_context(endpoint) or True,
            num_concurrent=_REQUESTS_IN_FLIGHT,
            max_retries=_ATTEMPTS,
            max_length=evaluation.maximum_length,
            tokenizer_backend=None,
        )
        self.tokenizer, self.tokenizer_backend = tokenizer, "huggingface"
        self.longest, self.request_options = evaluation.maximum_length, dict[str, Any]()
        self._begin, self._arguments = begin_token(tokenizer), template_arguments(evaluation)
        self._words = _LastWords(header_secrets(headers))

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

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """As the class that asked the baseline: the begin token stands there once."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self.tokenizer.decode(self.prefix_token_id))
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def decode_batch(self, tokens: list[list[int]]) -> list[list[int]]:
        """Send tokens as they are, where prompts are text."""
        return tokens

    def loglikelihood(self, requests: list[Instance], **_: Any) -> Any:
        """As lm-eval.

        Raises:
            Transient: The server does not answer, or answers with an error, three times.
            ConfigError: It refuses access.
            Unsupported: It does not echo prompts with their logprobs.
        """
        return self._asked(super().loglikelihood, requests)

    def generate_until(self, requests: list[Instance], **_: Any) -> Any:
        """As `loglikelihood`."""
        return self._asked(super().generate_until, requests)

    def _asked(self, ask: Callable[[list[Instance]], Any], requests: list[Instance]) -> Any:
        logger = logging.getLogger("lm_eval.models.api_models")
        logger.addFilter(self._words)
        self._words.said = ""
        try:
            return ask(requests)
        except PipelineError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an answer that is none leads to
            said = self._words.said or f"{type(error).__name__}: {error}"
            if said.startswith(_DENIED):
                raise ConfigError(f"the server refuses access: {said}", where=self.base_url, hint=_KEY) from None
            problem = f"no usable answer in {_ATTEMPTS} attempts: {said}"
            raise Transient(problem, where=self.base_url) from None  # the cause holds the headers
        finally:
            logger.removeFilter(self._words)

    async def amodel_call(self, *arguments: Any, **options: Any) -> Any:
        """As lm-eval; what fails after the first failure, which is raised, is told nowhere: it holds the headers."""
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        return await super().amodel_call(*arguments, **options)

    def _create_payload(
        self, messages: Any, generate: bool = False, gen_kwargs: Mapping[str, Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        if not generate:
            return dict(super()._create_payload(messages))
        options = normalize_gen_kwargs(gen_kwargs)
        options["until"] = [word for word in options["until"] if word][:_MAXIMUM_STOP_WORDS]
        options = {**_PLAIN, **(_PLAIN_DRAWS if options["do_sample"] else {}), **options}
        prompt = messages.removeprefix(self._begin)
        return dict(super()._create_payload(prompt, generate=True, gen_kwargs=options, seed=self.repeat))

    def parse_generations(self, outputs: dict[str, Any], **_: Any) -> list[str]:
        """The only text of an answer; what ended it is kept for `ended_by_length`."""
        (choice,) = outputs["choices"]
        if outputs["model"] != (self.model or outputs["model"]) or choice["finish_reason"] not in {"stop", "length"}:
            raise ValueError(f"{outputs['model']} answered, and ended with {choice['finish_reason']}")
        self._reason = choice["finish_reason"]
        return [choice["text"]]

    def ended_by_length(self, request: tuple[str, Mapping[str, Any]], text: str) -> bool:  # noqa: ARG002
        return bool(self._reason == "length")

    def parse_logprobs(
        self, outputs: dict[str, Any], tokens: Sequence[Sequence[int]], ctxlens: Sequence[int], **_: Any
    ) -> list[tuple[float, bool]]:
        """As lm-eval, of an answer that echoes the tokens."""
        (choice,), (prompt,) = outputs["choices"], tokens
        told = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        if len(told) != len(prompt) + 1:
            raise Unsupported(
                f"the server tells {len(told)} logprobs of a prompt of {len(prompt)} tokens and the one after it",
                where=self.base_url,
                hint="list generative tasks only in served_tasks: this server does not echo prompts with logprobs",
            )
        return list(super().parse_logprobs(outputs, ctxlens=ctxlens))


class _LastWords(logging.Filter):
    """Keeps what lm-eval tells of a refused request, and lets nothing into the log, where keys would be with it.

    Attributes:
        said: A server's last words, without keys.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self.said, self._secrets = "", secrets

    def filter(self, record: logging.LogRecord) -> bool:
        status, _, body = record.getMessage().partition(", Response text: ")
        if body:
            reason = refusal_text(body.removesuffix(". Retrying...").encode())
            self.said = shown(f"HTTP {status.rpartition(' ')[2]}: {reason}", self._secrets)
        return False
