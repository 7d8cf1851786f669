"""Names and tensors of the model repositories that this package writes and calls."""

from __future__ import annotations

from dataclasses import dataclass

MODEL_NAME = "llm"
MODEL_VERSION = 1
CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.py"
BASE_FILES = ("llm_model_base.py", "served_model.py")
ENGINE_DIRECTORY = "engine"
"""Beside `model.py`, with `engine.json`: of every repository, whatever its engine is."""

ENDPOINT_FILE = "endpoint.json"
"""Beside `model.py`: how OpenAI's API is spoken to this model; see `endpoint_description`."""

SERVE_FILE = "serve.json"
"""Beside `model.py`, where the engine's own server takes Triton's place; see `endpoint_description`."""

LLM_FILE = "model.yaml"
CHECKPOINT_DIRECTORY = "checkpoint"
"""Beside `model.py`, for the LLM API; the checkpoint also for vLLM."""

COMPILED_DIRECTORY = "compiled"
"""In the engine: what its runtime compiled for the model and the GPU."""

ENGINE_MODEL = "tensorrt_llm"
TOKENIZER_DIRECTORY = "tokenizer"
"""The model that runs a TensorRT-LLM engine, and the tokenizer beside `model.py`, in the engine and its repository."""

FACTS_FILE = "release.json"
LINKS_FILE = "links.json"
FACT_PREFIX = "fact_"
"""Parameters of this name only inform; the served model does not read them."""

OPENVINO_FILES = (
    "config.json",
    "engine.json",
    "openvino_detokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_model.bin",
    "openvino_model.xml",
    "openvino_tokenizer.bin",
    "openvino_tokenizer.xml",
)
"""What OpenVINO's runtime needs in the engine directory."""

TOKENIZER_FILE = "tokenizer.json"
"""The model's tokenizer, where it has a fast one: the load test counts the tokens of made-up prompts by it."""


@dataclass(frozen=True)
class Tensor:
    """One input or output of the served model; `data_type` in Triton's words."""

    name: str
    data_type: str
    dimensions: tuple[int, ...] = (1,)
    optional: bool = False


INPUTS = (
    Tensor("text_input", "TYPE_STRING", optional=True),
    Tensor("max_tokens", "TYPE_INT64", optional=True),
    Tensor("stream", "TYPE_BOOL", optional=True),
    Tensor("temperature", "TYPE_FP32", optional=True),
    Tensor("ignore_eos", "TYPE_BOOL", optional=True),
    Tensor("stop", "TYPE_STRING", dimensions=(-1,), optional=True),
    Tensor("add_special_tokens", "TYPE_BOOL", optional=True),
)
"""Of every engine. A number of 64 bits does not wrap before it is checked."""

FEATURES = (
    Tensor("input_ids", "TYPE_INT32", dimensions=(-1,), optional=True),
    Tensor("top_p", "TYPE_FP32", optional=True),
    Tensor("top_k", "TYPE_INT32", optional=True),
    Tensor("min_p", "TYPE_FP32", optional=True),
    Tensor("seed", "TYPE_INT64", optional=True),
    Tensor("presence_penalty", "TYPE_FP32", optional=True),
    Tensor("frequency_penalty", "TYPE_FP32", optional=True),
    Tensor("repetition_penalty", "TYPE_FP32", optional=True),
    Tensor("logprobs", "TYPE_INT32", optional=True),
    Tensor("echo", "TYPE_BOOL", optional=True),
    Tensor("json_schema", "TYPE_STRING", optional=True),
)
"""Inputs that an engine may lack; the served model refuses those that its adapter does not name."""

ALL_FEATURES = tuple(tensor.name for tensor in FEATURES)

OUTPUTS = (
    Tensor("text_output", "TYPE_STRING"),
    Tensor("output_tokens", "TYPE_INT32"),
    Tensor("finish_reason", "TYPE_STRING"),
    Tensor("input_tokens", "TYPE_INT32"),
    Tensor("logprobs", "TYPE_STRING"),
)
