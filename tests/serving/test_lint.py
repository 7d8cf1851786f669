"""The linter: sound repositories have no finding; every mistake has one, with its rule, line and way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tritonclient")

import yaml

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.cli import main
from llm_pipeline.config.target import Target
from llm_pipeline.serving.lint import Finding, lint_repository_directory
from llm_pipeline.serving.triton_config.inflight_batcher import (
    add_tensors,
    bls_config,
    engine_model_config,
    ensemble_config,
    postprocessing_config,
    preprocessing_config,
    write_config,
)
from llm_pipeline.serving.triton_config.recorded import RecordedTensor

ARTICLES = Path(__file__).parent / "articles"
TOY = Path(__file__).parent / "toy_repository"
ENGINE = {"build_config": {"max_batch_size": 32, "max_beam_width": 1}, "pretrained_config": {"mapping": {}}}
CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
LLMAPI_TENSORS = {
    side: [RecordedTensor.model_validate(tensor) for tensor in tensors]
    for side, tensors in json.loads((Path(__file__).parent / "llmapi_tensors.json").read_text()).items()
    if side in ("inputs", "outputs")
}
"""Of the model of NVIDIA's `llmapi` repository."""

EXPECTED = {
    "000": [
        ("tensorrt_llm", 3, "leftover", "tensorrtllm"),
        ("tensorrt_llm", 8, "leftover", "0: the engine batches in flight"),
        ("tensorrt_llm", 9, "leftover", "0 for no limit"),
        ("tensorrt_llm", 13, "leftover", "TYPE_FP16"),
        ("tensorrt_llm", 19, "leftover", "logits_dtype"),
        ("tensorrt_llm", 25, "leftover_optional", "take the parameters out"),
    ],
    "001": [
        ("llama_70b", None, "missing_parameter", "gpt_model_path"),
        ("llama_70b", None, "missing_parameter", "inflight_fused_batching"),
        ("llama_70b", 2, "platform_for_backend", 'backend: "tensorrtllm"'),
        ("llama_70b", 4, "missing_tensor", "input_lengths"),
        ("llama_70b", 4, "missing_tensor", "request_output_len"),
        ("llama_70b", 8, "tensor_dims", "dims: [-1, -1]"),
        ("llama_70b", 11, "unknown_parameter", "gpt_model_path"),
        ("llama_70b", 12, "parameter_form", 'value: { string_value: "/models/llama_70b/1" }'),
        ("llama_70b", 15, "unknown_parameter", "kv_cache_free_gpu_mem_fraction"),
        ("llama_70b", 16, "parameter_form", 'value: { string_value: "40" }'),
        ("llama_70b", 19, "unknown_parameter", "config.json"),
        ("llama_70b", 20, "parameter_form", 'value: { string_value: "8" }'),
        ("llama_70b", 24, "queue_delay", "max_queue_delay_microseconds: 0"),
        ("llama_70b", 25, "unknown_field", "priority_levels, default_priority_level"),
    ],
    "002": [
        ("ensemble", 10, "leftover", "logits_dtype"),
        ("preprocessing", 14, "unknown_parameter", "tokenizer_dir"),
        ("tensorrt_llm", 2, "leftover", "tensorrtllm"),
        ("tensorrt_llm", 8, "leftover", "0 for no limit"),
        ("tensorrt_llm", 12, "leftover", "TYPE_FP16"),
        ("tensorrt_llm", 18, "leftover", "logits_dtype"),
    ],
    "003": [
        ("embedder", 2, "removed_backend", "ONNX"),
        ("llama", None, "engine_directory", "rank0.engine"),
        ("llama", None, "missing_parameter", "gpt_model_path"),
        ("llama", None, "missing_parameter", "gpt_model_type"),
        ("llama", 6, "tensor_reshape", "reshape: { shape: [ ] }"),
        ("llama", 7, "tensor_reshape", "reshape: { shape: [ ] }"),
        ("llama", 9, "data_type", "TYPE_STRING"),
        ("llama", 9, "unknown_tensor", "temperature"),
        ("llama", 12, "tensor_dims", "dims: [-1, -1]"),
        ("llama", 14, "gpu_instances", "gpu_device_ids"),
        ("llama", 15, "queue_delay", "max_queue_delay_microseconds: 0"),
        ("llama", 17, "unknown_parameter", "batch_scheduler_policy"),
        ("rag", 5, "output_not_written", "response_ids"),
        ("rag", 18, "tensor_not_used", "map it"),
        ("rag", 21, "input_not_mapped", "input_lengths"),
        ("rag", 21, "input_not_mapped", "request_output_len"),
        ("rag", 23, "tensor_not_made", "augmented_input_ids"),
        ("rag", 24, "tensor_not_used", "map it"),
    ],
    "004": [
        ("llama3", 6, "engine_compiler", "kv_cache_config"),
        ("llama3", 7, "engine_compiler", "kv_cache_config"),
        ("llama3", 21, "error_as_answer", "TritonError"),
        ("llama3", 24, "blocking_generate", "generate_async"),
        ("llama3", 25, "error_as_answer", "TritonError"),
        ("llama3", 6, "batching_twice", "max_batch_size: 0"),
    ],
}
"""Model, line, rule and a part of the fix, of every mistake in an article's repository."""


@pytest.mark.parametrize("article", EXPECTED)
def test_each_mistake_of_an_article_is_explained_and_nothing_else(article):
    (directory,) = ARTICLES.glob(f"{article}_*")
    findings = lint_repository_directory(directory)
    assert [(found.model, found.line, found.rule) for found in findings] == [row[:3] for row in EXPECTED[article]]
    for finding, (*_, fix) in zip(findings, EXPECTED[article], strict=True):
        assert fix in finding.fix


class Repository:
    """A sound repository of an engine, to break."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.target = Target(name="h100", accelerator="H100-SXM5-80GB", engine="tensorrt_llm_engine")
        self.engine = directory / "tensorrt_llm" / "1"
        self.configs: dict[str, Any] = {
            "tensorrt_llm": engine_model_config(
                self.target, engine_directory=str(self.engine), tokenizer_directory="/t"
            ),
            "preprocessing": preprocessing_config(self.target, tokenizer_directory="/t"),
            "postprocessing": postprocessing_config(self.target, tokenizer_directory="/t"),
            "ensemble": ensemble_config(self.target),
            "tensorrt_llm_bls": bls_config(self.target),
        }
        for name, config in self.configs.items():
            self.write(f"{name}/1/{'model.py' if config.backend == 'python' else '.gitkeep'}", CODE)
        self.write_engine(ENGINE)

    def write(self, path: str, text: str) -> None:
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_text(text)

    def write_engine(self, config: dict[str, Any], ranks: int = 1) -> None:
        self.write("tensorrt_llm/1/config.json", json.dumps(config))
        for rank in range(ranks):
            self.write(f"tensorrt_llm/1/rank{rank}.engine", "plan")

    def keep_only(self, model: str) -> None:
        for name in set(self.configs) - {model}:
            shutil.rmtree(self.directory / name)
        self.configs = {model: self.configs[model]}

    def lint(self) -> tuple[Finding, ...]:
        for name, config in self.configs.items():
            write_config(config, self.directory / name)
        return lint_repository_directory(self.directory)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def test_what_the_writers_write_has_no_finding(repository):
    assert repository.lint() == ()


def test_the_served_contract_of_this_package_has_no_finding():
    assert lint_repository_directory(TOY) == ()


def _step(repository: Repository, index: int = 0) -> Any:
    return repository.configs["ensemble"].ensemble_scheduling.step[index]


def _set(repository: Repository, model: str, key: str, value: str) -> None:
    repository.configs[model].parameters[key].string_value = value


def _add_gpu_group(repository: Repository) -> None:
    group = repository.configs["tensorrt_llm"].instance_group[0]
    group.kind = group.KIND_GPU


def _drop_tensor(repository: Repository, model: str, name: str) -> None:
    tensors = repository.configs[model].input
    tensors.remove(next(tensor for tensor in tensors if tensor.name == name))


def _tensor(repository: Repository, model: str, name: str) -> Any:
    config = repository.configs[model]
    return next(tensor for tensor in (*config.input, *config.output) if tensor.name == name)


def _rewrite(repository: Repository, path: str, text: str) -> None:
    repository.write(path, text)


def _engine(repository: Repository, part: str, **changes: Any) -> None:
    repository.write_engine({**ENGINE, part: {**ENGINE[part], **changes}})


def _change_message(message: Any, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(message, name, value)


def _batching(repository: Repository, **fields: Any) -> Any:
    batching = repository.configs["tensorrt_llm"].dynamic_batching
    _change_message(batching, **fields)
    return batching


def _delayed(repository: Repository) -> None:
    policy = _batching(repository, preserve_ordering=True).default_queue_policy
    _change_message(policy, default_timeout_microseconds=5, timeout_action=policy.DELAY)


Break = Callable[[Repository], Any]
BREAKS: dict[str, tuple[str, str, Break]] = {
    "name": ("preprocessing", "name_differs", lambda r: _change_message(r.configs["preprocessing"], name="tokenizer")),
    "no backend": ("tensorrt_llm", "missing_backend", lambda r: r.configs["tensorrt_llm"].ClearField("backend")),
    "guessed backend": ("preprocessing", "missing_backend", lambda r: r.configs["preprocessing"].ClearField("backend")),
    "ensemble's backend": (
        "ensemble",
        "backend_of_ensemble",
        lambda r: _change_message(r.configs["ensemble"], backend="python"),
    ),
    "ensemble's platform": ("ensemble", "ensemble_platform", lambda r: r.configs["ensemble"].ClearField("platform")),
    "negative": (
        "postprocessing",
        "negative_batch",
        lambda r: _change_message(r.configs["postprocessing"], max_batch_size=-1),
    ),
    "twice": (
        "preprocessing",
        "tensor_twice",
        lambda r: r.configs["preprocessing"].input.add().CopyFrom(_tensor(r, "preprocessing", "END_ID")),
    ),
    "unnamed": (
        "postprocessing",
        "tensor_name",
        lambda r: r.configs["postprocessing"].output.add(data_type=8, dims=[1]),
    ),
    "untyped": ("postprocessing", "data_type", lambda r: r.configs["postprocessing"].output.add(name="more", dims=[1])),
    "zero dims": (
        "preprocessing",
        "tensor_dims",
        lambda r: r.configs["preprocessing"].output.add(name="more", data_type=8, dims=[0]),
    ),
    "no dims": (
        "preprocessing",
        "tensor_dims",
        lambda r: r.configs["preprocessing"].output.add(name="more", data_type=8),
    ),
    "reshape": (
        "tensorrt_llm_bls",
        "tensor_reshape",
        lambda r: _tensor(r, "tensorrt_llm_bls", "return_log_probs").reshape.shape.append(2),
    ),
    "reshape to nothing": (
        "tensorrt_llm_bls",
        "tensor_reshape",
        lambda r: _change_message(r.configs["tensorrt_llm_bls"], max_batch_size=0),
    ),
    "preferred": ("tensorrt_llm", "preferred_batch_size", lambda r: _batching(r).preferred_batch_size.append(64)),
    "preferred zero": ("tensorrt_llm", "preferred_batch_size", lambda r: _batching(r).preferred_batch_size.append(0)),
    "no batches": (
        "postprocessing",
        "batching_without_batches",
        lambda r: _change_message(r.configs["postprocessing"], max_batch_size=0),
    ),
    "default level": ("tensorrt_llm", "default_priority_level", lambda r: _batching(r, priority_levels=2)),
    "levels": ("tensorrt_llm", "priority_levels", lambda r: _batching(r, default_priority_level=1)),
    "level's policy": (
        "tensorrt_llm",
        "priority_queue_policy",
        lambda r: _batching(r, priority_levels=1, default_priority_level=1).priority_queue_policy[2].SetInParent(),
    ),
    "order and levels": (
        "tensorrt_llm",
        "preserve_ordering",
        lambda r: _batching(r, preserve_ordering=True, priority_levels=2, default_priority_level=1),
    ),
    "order and delay": ("tensorrt_llm", "preserve_ordering", _delayed),
    "cache": (
        "tensorrt_llm",
        "response_cache",
        lambda r: _change_message(r.configs["tensorrt_llm"].response_cache, enable=True),
    ),
    "no version": (
        "preprocessing",
        "no_version",
        lambda r: (r.directory / "preprocessing/1").rename(r.directory / "preprocessing/v1"),
    ),
    "version policy": (
        "preprocessing",
        "missing_version",
        lambda r: r.configs["preprocessing"].version_policy.specific.versions.append(2),
    ),
    "no code": ("preprocessing", "missing_file", lambda r: (r.directory / "preprocessing/1/model.py").unlink()),
    "link": ("preprocessing", "symbolic_link", lambda r: (r.directory / "preprocessing/1/tokenizer").symlink_to("/t")),
    "syntax": ("preprocessing", "code_syntax", lambda r: _rewrite(r, "preprocessing/1/model.py", "def")),
    "class": ("preprocessing", "code_class", lambda r: _rewrite(r, "preprocessing/1/model.py", "class Model: pass\n")),
    "ensemble's instances": ("ensemble", "ensemble_field", lambda r: r.configs["ensemble"].instance_group.add(count=1)),
    "unused input": (
        "ensemble",
        "input_not_used",
        lambda r: r.configs["ensemble"].input.add(name="image", data_type=13, dims=[1]),
    ),
    "unwritten output": (
        "ensemble",
        "output_not_written",
        lambda r: r.configs["ensemble"].output.add(name="image", data_type=13, dims=[1]),
    ),
    "unmade": ("ensemble", "tensor_not_made", lambda r: _step(r, 1).input_map.update({"draft_input_ids": "drafts"})),
    "unused tensor": ("ensemble", "tensor_not_used", lambda r: _step(r).output_map.update({"PIXEL_VALUES": "pixels"})),
    "written twice": (
        "ensemble",
        "tensor_written_twice",
        lambda r: _step(r, 1).output_map.update({"output_ids": "_INPUT_ID"}),
    ),
    "step's model": ("ensemble", "unknown_model", lambda r: _change_message(_step(r), model_name="tokenize")),
    "step's input": ("ensemble", "unknown_step_tensor", lambda r: _step(r).input_map.update({"TEXT": "text_input"})),
    "step's output": (
        "ensemble",
        "unknown_step_tensor",
        lambda r: _step(r, 2).output_map.update({"TEXT": "text_output"}),
    ),
    "required input": ("ensemble", "input_not_mapped", lambda r: _step(r, 2).input_map.pop("SEQUENCE_LENGTH")),
    "ensemble's batch": (
        "ensemble",
        "ensemble_batch",
        lambda r: _change_message(r.configs["ensemble"], max_batch_size=64),
    ),
    "ensemble's type": (
        "ensemble",
        "tensor_type",
        lambda r: _change_message(_tensor(r, "ensemble", "max_tokens"), data_type=9),
    ),
    "ensemble's dims": ("ensemble", "tensor_dims", lambda r: _tensor(r, "ensemble", "seed").dims.append(1)),
    "needed tensor": ("tensorrt_llm", "missing_tensor", lambda r: _drop_tensor(r, "tensorrt_llm", "input_lengths")),
    "engine's type": (
        "tensorrt_llm",
        "tensor_type",
        lambda r: _change_message(_tensor(r, "tensorrt_llm", "stop"), data_type=8),
    ),
    "engine's tensor": (
        "tensorrt_llm",
        "unknown_tensor",
        lambda r: r.configs["tensorrt_llm"].input.add(name="top_k", data_type=8, dims=[1]),
    ),
    "delay": ("tensorrt_llm", "queue_delay", lambda r: _batching(r, max_queue_delay_microseconds=1)),
    "static": ("tensorrt_llm", "static_batching", lambda r: _set(r, "tensorrt_llm", "gpt_model_type", "V1")),
    "sequences": (
        "tensorrt_llm",
        "batching_twice",
        lambda r: r.configs["tensorrt_llm"].sequence_batching.SetInParent(),
    ),
    "gpu": ("tensorrt_llm", "gpu_instances", _add_gpu_group),
    "device sets": ("tensorrt_llm", "device_sets", lambda r: _set(r, "tensorrt_llm", "gpu_device_ids", "0;1")),
    "devices of a set": ("tensorrt_llm", "device_sets", lambda r: _set(r, "tensorrt_llm", "gpu_device_ids", "0,1")),
    "required parameter": (
        "tensorrt_llm",
        "missing_parameter",
        lambda r: r.configs["tensorrt_llm"].parameters.pop("gpt_model_type"),
    ),
    "tokenizer": (
        "postprocessing",
        "missing_parameter",
        lambda r: r.configs["postprocessing"].parameters.pop("tokenizer_dir"),
    ),
    "near parameter": (
        "tensorrt_llm",
        "unknown_parameter",
        lambda r: _set(r, "tensorrt_llm", "enable_kv_reuse", "true"),
    ),
    "word": ("tensorrt_llm", "parameter_value", lambda r: _set(r, "tensorrt_llm", "batch_scheduler_policy", "greedy")),
    "share": (
        "tensorrt_llm",
        "parameter_value",
        lambda r: _set(r, "tensorrt_llm", "kv_cache_free_gpu_mem_fraction", "90"),
    ),
    "switch": ("tensorrt_llm", "parameter_value", lambda r: _set(r, "tensorrt_llm", "enable_kv_cache_reuse", "yes")),
    "windows": (
        "tensorrt_llm",
        "parameter_value",
        lambda r: _set(r, "tensorrt_llm", "max_attention_window_size", "1,x"),
    ),
    "leftover": ("tensorrt_llm", "leftover", lambda r: _set(r, "tensorrt_llm", "gpt_model_path", "${engine_dir}")),
    "other leftover": (
        "preprocessing",
        "leftover",
        lambda r: _set(r, "preprocessing", "tokenizer_dir", "{{ tokenizer }}"),
    ),
    "engine file": (
        "tensorrt_llm",
        "engine_directory",
        lambda r: _set(r, "tensorrt_llm", "gpt_model_path", "/e/rank0.engine"),
    ),
    "no config.json": ("tensorrt_llm", "engine_directory", lambda r: (r.engine / "config.json").unlink()),
    "other config.json": (
        "tensorrt_llm",
        "engine_directory",
        lambda r: _rewrite(r, "tensorrt_llm/1/config.json", "[]"),
    ),
    "rank": ("tensorrt_llm", "engine_directory", lambda r: _engine(r, "pretrained_config", mapping={"world_size": 2})),
    "engine's batch": ("tensorrt_llm", "engine_batch", lambda r: _engine(r, "build_config", max_batch_size=8)),
    "engine's beams": ("tensorrt_llm", "engine_beams", lambda r: _set(r, "tensorrt_llm", "max_beam_width", "4")),
    "bls streams": (
        "tensorrt_llm_bls",
        "decoupled_differs",
        lambda r: r.configs["tensorrt_llm"].model_transaction_policy.Clear(),
    ),
    "bls does not": (
        "tensorrt_llm_bls",
        "decoupled_differs",
        lambda r: r.configs["tensorrt_llm_bls"].model_transaction_policy.Clear(),
    ),
    "bls's model": (
        "tensorrt_llm_bls",
        "unknown_model",
        lambda r: _set(r, "tensorrt_llm_bls", "tensorrt_llm_model_name", "x"),
    ),
}


@pytest.mark.parametrize("mistake", BREAKS)
def test_a_mistake_in_a_sound_repository_is_found_where_it_is(repository, mistake):
    model, rule, break_it = BREAKS[mistake]
    if model not in ("ensemble", "tensorrt_llm_bls"):  # they need the others
        repository.keep_only(model)
    break_it(repository)
    assert (model, rule) in {(found.model, found.rule) for found in repository.lint()}


TEXTS: dict[str, tuple[str, str, str, int]] = {
    "bytes": ('input { name: "a" data_type: TYPE_BYTES dims: 1 }', "data_type", "TYPE_STRING", 4),
    "misspelt type": ('input { name: "a" data_type: TYPE_STRNG dims: 1 }', "data_type", "TYPE_STRING", 4),
    "misspelt kind": ("instance_group { kind: KIND_CPUS }", "unknown_value", "KIND_CPU", 4),
    "misspelt field": ("dynamic_batchin { preferred_batch_size: 1 }", "unknown_field", "dynamic_batching", 4),
    "two schedulers": ("dynamic_batching { }\nsequence_batching { }", "two_schedulers", "keep one", 5),
    "twice": ('backend: "python"', "field_twice", "keep one", 4),
    "quoted number": ('max_batch_size: "8"', "not_a_number", "8, without quotes", 4),
    "word": ("default_model_filename: serve", "unquoted_string", '"serve"', 4),
    "bare value": ('parameters { key: "a" value: 8 }', "parameter_form", 'value: { string_value: "8" }', 4),
    "bracket": ("instance_group { kind: KIND_CPU", "parse_error", "brackets", 4),
}


@pytest.mark.parametrize("mistake", TEXTS)
def test_what_the_parser_refuses_is_explained_and_the_rest_read_on(tmp_path, mistake):
    text, rule, fix, line = TEXTS[mistake]
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.py").write_text(CODE)
    (tmp_path / "m/config.pbtxt").write_text(f'# name: "m" once\nname: "other"\nbackend: "python"\n{text}\n')
    findings = lint_repository_directory(tmp_path)
    (found,) = [found for found in findings if found.rule == rule]
    assert found.line == line
    assert fix in found.fix
    assert rule == "parse_error" or 2 in {found.line for found in findings if found.rule == "name_differs"}


def test_a_placeholder_in_a_comment_is_none(tmp_path, repository):
    repository.lint()
    path = tmp_path / "tensorrt_llm/config.pbtxt"
    path.write_text(path.read_text() + '# was ${triton_backend}, "${engine_dir}"\n')
    assert lint_repository_directory(tmp_path) == ()


def llmapi(directory: Path, arguments: Any, **fields: Any) -> tuple[Finding, ...]:
    from tritonclient.grpc import model_config_pb2 as messages

    config = messages.ModelConfig(name="tensorrt_llm", backend="python", **fields)
    add_tensors(config, LLMAPI_TENSORS["inputs"], LLMAPI_TENSORS["outputs"], {})
    write_config(config, directory / "tensorrt_llm")
    (directory / "tensorrt_llm/1").mkdir()
    (directory / "tensorrt_llm/1/model.py").write_text(CODE)
    text = arguments if isinstance(arguments, str) else yaml.safe_dump(arguments)
    (directory / "tensorrt_llm/1/model.yaml").write_text(text)
    return lint_repository_directory(directory)


TRITON = {"max_batch_size": 0, "decoupled": True}
SOUND = {"model": "checkpoint", "backend": "pytorch", "tensor_parallel_size": 1, "triton_config": TRITON}


def test_the_llm_apis_model_has_no_finding(tmp_path):
    pytest.importorskip("jsonschema")
    assert llmapi(tmp_path, SOUND) == ()


@pytest.mark.parametrize(
    ("arguments", "rule", "part"),
    [
        ({**SOUND, "triton_config": {**TRITON, "max_batch_size": 64}}, "batching_twice", "batches in flight"),
        ({**SOUND, "triton_config": {**TRITON, "decouple": True}}, "unknown_key", "decoupled"),
        ({**SOUND, "triton_config": {"max_batch_size": 0}}, "missing_key", "decoupled"),
        ({**SOUND, "triton_config": {**TRITON, "decoupled": "yes"}}, "arguments", "neither true nor false"),
        ({"model": "m"}, "missing_key", "triton_config"),
        ({"triton_config": TRITON}, "missing_key", "model is missing"),
        ({**SOUND, "tensor_paralel_size": 2}, "arguments_unknown", "tensor_paralel_size"),
        ({**SOUND, "model": "${checkpoint}"}, "leftover", "${checkpoint}"),
        ("model: [", "arguments", "expected"),
    ],
)
def test_a_mistake_in_the_llm_apis_arguments_is_found(tmp_path, arguments, rule, part):
    pytest.importorskip("jsonschema")
    findings = [found for found in llmapi(tmp_path, arguments) if found.rule == rule]
    assert findings
    assert {found.file for found in findings} == {"1/model.yaml"}
    assert part in str(findings[0])


def test_the_line_of_an_argument_is_that_of_the_whole_key(tmp_path):
    pytest.importorskip("jsonschema")
    text = "model: m\nmax_batch_size: 64\nkv_cache_config:\n  free_memory: 0.9\n"
    text += "triton_config:\n  decoupled: true\n  max_batch_size: 8\n"
    findings = llmapi(tmp_path, text)
    assert {(found.rule, found.line) for found in findings} == {("arguments_unknown", 4), ("batching_twice", 7)}


def test_nvidias_model_of_the_llm_api_sets_batches_in_its_arguments_only(tmp_path):
    pytest.importorskip("jsonschema")
    findings = llmapi(tmp_path, SOUND, max_batch_size=8, model_transaction_policy={"decoupled": True})
    assert {found.rule for found in findings} == {"batching_twice", "decoupled_twice"}


def test_code_that_answers_failures_properly_has_no_finding(tmp_path, repository):
    code = CODE.replace(
        "return []", "try:\n            return []\n        except Exception as error:\n            {}\n"
    )
    repository.write("preprocessing/1/model.py", code.format("raise"))
    repository.write("postprocessing/1/model.py", code.format("return [pb_utils.TritonError(str(error))]"))
    assert repository.lint() == ()


@pytest.mark.parametrize(
    ("imported", "call", "found"),
    [
        ("import threading", "request.exec()", True),
        ("from concurrent.futures import ThreadPoolExecutor", "request.exec(decoupled=True)", True),
        ("import asyncio", "request.async_exec()", True),
        ("import json", "request.exec(decoupled=True)", False),
        ("import threading", "cursor.exec('select 1')", False),
    ],
)
def test_calls_of_other_models_beside_threads_are_warned_of(repository, imported, call, found):
    repository.write("preprocessing/1/model.py", f"{imported}\n" + CODE.replace("return []", f"return [{call}]"))
    findings = repository.lint()
    assert [(finding.rule, finding.severity) for finding in findings] == [("call_beside_threads", "warning")] * found


ENSEMBLE_OF_A_PLAN = """platform: "ensemble"
input [ { name: "in" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 10 ] } ]
ensemble_scheduling { step [ { model_name: "net" model_version: -1
  input_map { key: "input" value: "in" } output_map { key: "classes" value: "out" } } ] }
"""
"""As in dali_backend, benchmarks/BM_resnet50 (commit 01783f8f, 2026-06-30): `net` leaves its tensors to the server."""


@pytest.mark.parametrize(("platform", "rules"), [("tensorrt_plan", []), ("python", ["unknown_step_tensor"] * 2)])
def test_tensors_that_the_server_completes_are_not_missed_in_a_step(tmp_path, platform, rules):
    for name, text in (("all", ENSEMBLE_OF_A_PLAN), ("net", f'platform: "{platform}"')):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    assert [found.rule for found in lint_repository_directory(tmp_path) if found.model == "all"] == rules


def test_a_parameter_of_the_engine_does_not_make_one_of_another_backend(tmp_path):
    (tmp_path / "qwen3" / "1").mkdir(parents=True)
    (tmp_path / "qwen3" / "config.pbtxt").write_text(
        'backend: "vllm"\nparameters { key: "gpt_model_type" value: { string_value: "inflight_fused_batching" } }\n'
    )
    assert lint_repository_directory(tmp_path) == ()


def test_a_directory_that_is_no_repository_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a directory"):
        lint_repository_directory(tmp_path / "none")
    with pytest.raises(ConfigError, match="no model"):
        lint_repository_directory(tmp_path)
    with pytest.raises(ConfigError, match="one model, not a repository"):
        lint_repository_directory(TOY / "llm")


def test_a_directory_without_a_configuration_is_found(tmp_path):
    (tmp_path / "m/1").mkdir(parents=True)
    assert [found.rule for found in lint_repository_directory(tmp_path)] == ["missing_config"]


def test_the_command_prints_a_line_a_finding_and_fails_on_errors(capsys):
    (directory,) = ARTICLES.glob("000_*")
    assert main(["lint-repo", str(directory)]) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("tensorrt_llm/config.pbtxt:3 error leftover: ${triton_backend} was never filled in")
    assert " -> tensorrtllm" in first
    assert last == "5 errors, 1 warnings"


def test_the_command_takes_warnings_for_errors_when_asked(tmp_path, repository, capsys):
    _batching(repository, max_queue_delay_microseconds=5000)
    repository.lint()
    assert main(["lint-repo", str(tmp_path)]) == 0
    assert main(["lint-repo", str(tmp_path), "--strict"]) == 1
    capsys.readouterr()
    assert main(["lint-repo", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["rule"], row["severity"]) == ("tensorrt_llm", "queue_delay", "warning")


@pytest.mark.parametrize(
    "config",
    [
        {"build_config": [], "pretrained_config": {}},
        {"build_config": {}, "pretrained_config": {"mapping": [1]}},
        {"build_config": {}, "pretrained_config": {"mapping": {"world_size": "two"}}},
        {"build_config": {"max_batch_size": "x"}, "pretrained_config": {}},
        {"build_config": {"max_batch_size": float("inf")}, "pretrained_config": {}},
        {"build_config": {}, "pretrained_config": {"mapping": {"world_size": float("inf")}}},
    ],
)
def test_a_config_that_no_engine_has_is_a_finding(repository, config):
    repository.write_engine(config)
    found = repository.lint()
    assert [(finding.rule, finding.severity) for finding in found] == [("engine_directory", "error")]


def test_ranks_without_number_are_not_looked_for_one_by_one(repository):
    repository.write_engine({"build_config": {}, "pretrained_config": {"mapping": {"world_size": 10**15}}})
    assert any("rank1.engine is missing" in str(finding) for finding in repository.lint())


@pytest.mark.parametrize(
    "config",
    [
        'input [{name: "x" data_type: 99 dims: [1]}]',
        'sequence_batching { control_input [{name: "x" control [{kind: 77}]}] }',
        'batch_input [{kind: 1 data_type: 99 source_input: "x"}]',
        'backend: "tensorrtllm" input [{name: "input_ids" data_type: 99 dims: [-1]}]',
    ],
)
def test_a_number_that_an_enumeration_does_not_have_is_a_finding(tmp_path, config):
    _write_python(tmp_path, config, CODE)
    assert any("99" in str(finding) or "77" in str(finding) for finding in lint_repository_directory(tmp_path))


@pytest.mark.parametrize("code", ["x = " + "-" * 200_000 + "1", "x = a" + ".b" * 20_000])
def test_code_that_python_cannot_hold_is_a_finding(tmp_path, code):
    _write_python(tmp_path, "", code)
    assert [finding.rule for finding in lint_repository_directory(tmp_path)] == ["code_syntax"]


def test_arguments_whose_keys_are_no_words_are_findings(tmp_path):
    _write_python(tmp_path, "", CODE)
    text = "model: x\n5: y\nfoo: 3\ntriton_config: {max_batch_size: 0, decoupled: true}\n"
    (tmp_path / "toy" / "1" / "model.yaml").write_text(text)
    assert any(finding.message.startswith("5: ") for finding in lint_repository_directory(tmp_path))


def _write_python(repository: Path, config: str, code: str) -> None:
    (repository / "toy" / "1").mkdir(parents=True)
    backend = "" if "backend:" in config else 'backend: "python" '
    (repository / "toy" / "config.pbtxt").write_text(backend + config)
    (repository / "toy" / "1" / "model.py").write_text(code)
