"""What OpenAI's clients ask, and the form in which they are answered.

Fields of a request that would change the answer and are not known here are refused by their name; null is a field left
out. Unknown fields of messages are passed over: clients send back what other servers said, and notes of their own.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

HARMLESS = frozenset({
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user",
})  # fmt: skip
"""Fields that no answer depends on."""

AS_IF_NOT_ASKED: Mapping[str, frozenset[float]] = {
    "top_p": frozenset({1}),
    "top_k": frozenset({-1, 0}),
    "min_p": frozenset({0}),
    "presence_penalty": frozenset({0}),
    "frequency_penalty": frozenset({0}),
    "repetition_penalty": frozenset({1}),
}
"""Values that change nothing, so that any engine can do them."""

ONLY_WHEN_DRAWN = frozenset({"top_p", "top_k", "min_p", "seed"})
"""At temperature 0 they change nothing."""

DEFAULT_TEMPERATURE = 1.0
DEFAULT_COMPLETION_TOKENS = 16
ALL_THERE_IS_ROOM_FOR = -1
MOST_ANSWERS = 2048


class ApiError(Exception):
    """A request that is answered with an error in OpenAI's form."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        kinds = {404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}
        kind = kinds.get(
            self.status, "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        )
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value


def _text_of(content: Any) -> Any:
    """Text parts as one text."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('only parts {"type": "text", "text": ...} are understood')
    return "\n".join(part["text"] for part in content)


class _Function(_Part, extra="ignore"):
    name: str
    arguments: str = "{}"


class _ToolCall(_Part, extra="ignore"):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class Message(_Part, extra="ignore"):
    """One message of a chat; its reasoning has another name in vLLM's answers than elsewhere."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[str | None, BeforeValidator(_text_of)] = None
    name: str | None = None
    tool_calls: Annotated[list[_ToolCall], Field(max_length=128)] = Field(default=[])
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(default=None, validation_alias=AliasChoices("reasoning_content", "reasoning"))

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it: arguments of tool calls are objects."""
        message = self.model_dump(exclude_none=True, exclude={"tool_calls"})
        message.setdefault("content", "")
        if self.tool_calls:
            calls = [call.model_dump(exclude_none=True) for call in self.tool_calls]
            for call in calls:
                call["function"]["arguments"] = _object(call["function"]["arguments"])
            message["tool_calls"] = calls
        return message


def _object(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text  # a model's own words, perhaps cut


class StreamOptions(_Part):
    """What a stream says beside text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class _JsonSchema(_Part):
    name: str = ""
    description: str = ""
    strict: bool = False
    schema_: dict[str, JsonValue] = Field(default={}, alias="schema")


class ResponseFormat(_Part):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is for the type json_schema, which needs it")
        return self

    def schema_text(self) -> str | None:
        """The JSON schema of answers, `{}` for any object; None for free text."""
        if self.type == "text":
            return None
        return json.dumps(self.json_schema.schema_ if self.json_schema else {}, ensure_ascii=False)


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Asked(_Part):
    """What chats and completions have in common; `model` may be left out, as there is one."""

    model: Annotated[str | None, Field(max_length=512)] = None
    max_tokens: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63 - MOST_ANSWERS)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0, le=10)] = None
    stop: Annotated[list[str], BeforeValidator(_one_or_more), Field(max_length=64)] = Field(default=[])
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=128)] = 1
    logit_bias: dict[str, float] = Field(default={})
    response_format: ResponseFormat | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    @abstractmethod
    def most_tokens(self) -> int:
        """Of one answer."""

    @property
    @abstractmethod
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens are told with their logprobs; None for no logprobs."""

    @property
    def form(self) -> tuple[str, str | None]:
        """The field that asks for an answer by a JSON schema, and the schema's text; None for free text."""
        return "response_format", self.response_format.schema_text() if self.response_format else None

    def inputs(self, defaults: Mapping[str, float], features: Iterable[str]) -> dict[str, Any]:
        """The inputs of `llm` that say how to generate.

        Args:
            defaults: Sampling where this request says nothing.
            features: Inputs that this engine takes beyond those that all take.

        Raises:
            ApiError: The engine cannot do what is asked.
        """
        if self.logit_bias:
            raise cannot("logit_bias")
        asked = {name: getattr(self, name) for name in (*AS_IF_NOT_ASKED, "seed", "temperature")}
        asked = {name: value for name, value in asked.items() if value is not None}
        schema_field, schema = self.form
        more = {"logprobs": self.likeliest, "json_schema": schema}
        known = {name: value for name, value in defaults.items() if name in features or name == "temperature"}
        inputs = {"temperature": DEFAULT_TEMPERATURE, **known, **asked}
        inputs |= {name: value for name, value in more.items() if value is not None}
        unsaid = {name for name, values in AS_IF_NOT_ASKED.items() if inputs.get(name) in values}
        unsaid |= ONLY_WHEN_DRAWN if inputs["temperature"] == 0 else set()
        inputs = {name: value for name, value in inputs.items() if name not in unsaid}
        for name in inputs.keys() - {"temperature"} - set(features):
            raise cannot({"json_schema": schema_field}.get(name, name))
        inputs |= {"max_tokens": self.most_tokens, "stream": self.stream}
        if self.stop:
            inputs["stop"] = self.stop
        if self.ignore_eos:
            inputs["ignore_eos"] = True
        return inputs


def cannot(field: str) -> ApiError:
    """The error of a field that this engine does not support."""
    return ApiError(f"{field} is not supported by the engine of this model", param=field, code="unsupported_parameter")


_DEFINITIONS = {"$defs", "definitions"}


class _Named(_Part):
    name: str


class _Chosen(_Part):
    type: Literal["function"]
    function: _Named


class ChatRequest(Asked):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    max_tokens: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    tools: Annotated[list[dict[str, JsonValue]], Field(max_length=128)] = Field(default=[])
    tool_choice: Literal["auto", "none", "required"] | _Chosen = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: Annotated[dict[str, JsonValue], Field(max_length=64)] = Field(default={})

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, tools: list[dict[str, JsonValue]]) -> list[dict[str, JsonValue]]:
        for tool in tools:
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
                raise ValueError('only tools {"type": "function", "function": {"name": ...}} are understood')
            schema = function.get("parameters") or {}
            if not isinstance(schema, dict) or not all(isinstance(schema.get(kind, {}), dict) for kind in _DEFINITIONS):
                raise ValueError("parameters of a tool are a JSON schema of an object")
        return tools

    @model_validator(mode="after")
    def _logprobs_are_asked_for(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or ALL_THERE_IS_ROOM_FOR

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _can_call_what_it_must(self) -> ChatRequest:
        if self.must_call and (not self._callable() or (self.response_format and self.response_format.type != "text")):
            words = "tool_choice asks for a call: name a tool of `tools`, and no response_format"
            raise ApiError(words, param="tool_choice")
        return self

    @property
    def offers_tools(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether the answer is nothing but calls."""
        return self.tool_choice not in ("auto", "none")

    @property
    def names_its_tool(self) -> bool:
        """Whether the request says which tool is called."""
        return isinstance(self.tool_choice, _Chosen)

    def _callable(self) -> list[Any]:
        name = self.tool_choice.function.name if isinstance(self.tool_choice, _Chosen) else None
        functions: list[Any] = [tool["function"] for tool in self.tools]
        return [function for function in functions if name in (None, function["name"])]

    @property
    def form(self) -> tuple[str, str | None]:
        """That of a list of calls, where there must be some; definitions that arguments refer to stand at its top."""
        if not self.must_call:
            return super().form
        calls, definitions = [], dict[str, Any]()
        for function in self._callable():
            arguments = dict(function.get("parameters") or {"type": "object"})
            for kind in arguments.keys() & _DEFINITIONS:
                definitions.setdefault(kind, {}).update(arguments.pop(kind))
            call = {"name": {"enum": [function["name"]]}, "arguments": arguments}
            calls.append({"type": "object", "properties": call, "required": [*call], "additionalProperties": False})
        most = {} if self.parallel_tool_calls and not self.names_its_tool else {"maxItems": 1}
        listed = {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}, **definitions}
        return "tool_choice", json.dumps(listed, ensure_ascii=False)


Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


def _prompts(value: Any) -> Any:
    """One prompt, or several: each is text or tokens."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        return [value]
    return value


class CompletionRequest(Asked):
    """The body of /v1/completions."""

    prompt: Annotated[list[str] | list[Tokens], BeforeValidator(_prompts), Field(min_length=1, max_length=MOST_ANSWERS)]
    echo: bool = False
    logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    best_of: Literal[1] = 1
    suffix: Literal[""] = ""

    @model_validator(mode="after")
    def _within_bounds(self) -> CompletionRequest:
        if len(self.prompt) * self.n > MOST_ANSWERS:
            raise ValueError(f"prompts and n ask for more than {MOST_ANSWERS} answers")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is at least 1, or 0 with echo")
        return self

    @property
    def most_tokens(self) -> int:
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def likeliest(self) -> int | None:
        return self.logprobs


AskedT = TypeVar("AskedT", bound=Asked)


def read(kind: type[AskedT], body: bytes) -> AskedT:
    """The request in a body. Parsing is by pydantic: its depth is bounded, and it knows no recursion of Python.

    Raises:
        ApiError: The body is no such request; names the field.
    """
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"the body is not usable JSON: {error}", code="invalid_json") from error
    if not isinstance(document, dict):
        raise ApiError("the body is not a JSON object", code="invalid_json")
    try:
        return kind.model_validate({name: value for name, value in document.items() if name not in HARMLESS})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _field_name(first["loc"])
        if first["type"] == "extra_forbidden":
            raise ApiError(f"{param} is not known here", param=param, code="unknown_parameter") from error
        raise ApiError(f"{param}: {first['msg']}" if param else first["msg"], param=param or None) from error


def _field_name(place: tuple[int | str, ...]) -> str:
    """`messages[0].content`, without pydantic's names of the members of a union."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not any(sign in part for sign in "[(,") and part not in {"str", "int", "float"}:
            name += f".{part}" if name else part
    return name[:200]
