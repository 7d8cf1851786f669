"""NVIDIA's own files as gates: nothing sound is called wrong, and what the server refuses is found.

`lint_corpus/` holds the files as data, each with its source, commit, date and licence.
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("tritonclient")

from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.serving.lint import Finding, lint_repository_directory

CORPUS = Path(__file__).parent / "lint_corpus"


def cases(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CORPUS / f"{name}.json").read_text())["cases"]
    return found


def lint(directory: Path, models: dict[str, str]) -> tuple[Finding, ...]:
    for model, text in models.items():
        (directory / model / "1").mkdir(parents=True)
        (directory / model / "config.pbtxt").write_text(text)
    return lint_repository_directory(directory)


def errors(findings: tuple[Finding, ...]) -> list[str]:
    return [str(finding) for finding in findings if finding.severity == "error"]


REFUSED = cases("triton_refused")
RULE_OF = (
    (r"batch_input_.*", "batch_input"),
    (r"batch_output_.*", "batch_output"),
    (r"control_.*", "sequence_control"),
    (r"default_priority_level.*", "default_priority_level"),
    (r"priority_level.*", "priority_queue_policy"),
    (r"preserve_ordering.*", "preserve_ordering"),
    (r"reshape_.*", "tensor_reshape"),
    (r"zerodims_.*", "tensor_dims"),
    (r"missing_datatype", "data_type"),
    (r"negative_max_batch_size", "negative_batch"),
    (r"invalid_cpu|negative_gpu|invalid_gpu", "instance_gpus"),
    (r"ensemble_scheduling_set", "ensemble_platform"),
    (r".*circular_dependency", "ensemble_circle"),
    (r"ensemble_scheduling_no_set|no_step.*", "ensemble_without_steps"),
    (r"has_backend", "backend_of_ensemble"),
    (r"inconsistent_data_type", "tensor_type"),
    (r"inconsistent_shape", "tensor_dims"),
    (r"instance_group_set|model_warm_up_set|optimization_set", "ensemble_field"),
    (r"invalid_batch_size", "ensemble_batch"),
    (r"invalid_decoupled_branching.*", "streams_meet"),
    (r"invalid_(input|output)_map", "unknown_step_tensor"),
    (r"no_(input_map|output_map|model_name)", "step_field"),
    (r"no_required_version.*", "missing_version"),
    (r"non_existing_model", "unknown_model"),
    (r"output_to_tensor_overmapped", "tensor_written_twice"),
    (r"redundant_tensor_as_.*|tensor_to_input_overmapped", "tensor_not_used"),
    (r"unmapped_input", "input_not_mapped"),
    (r"unreachable_input", "input_not_used"),
    (r"unreachable_output", "output_not_written"),
    (r"unreachable_output_2", "tensor_circle"),
    (r"unreachable_output_3", "tensor_not_made"),
)
NEEDS_THE_HOST = {"invalid_gpu"}
"""What only a host can refuse: GPU 42 is a warning."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_tritons_own_tests_see_refused_is_found_by_its_rule(case, tmp_path):
    rule = next(rule for pattern, rule in reversed(RULE_OF) if re.fullmatch(pattern, case))
    severity = "warning" if case in NEEDS_THE_HOST else "error"
    findings = lint(tmp_path, REFUSED[case]["models"])
    assert (rule, severity) in {(finding.rule, finding.severity) for finding in findings}, REFUSED[case]["says"]


@pytest.mark.parametrize("case", TAKEN := cases("triton_taken"))
def test_what_tritons_own_tests_see_loaded_has_no_error(case, tmp_path):
    assert errors(lint(tmp_path, TAKEN[case]["models"])) == []


def filled(template: str, arguments: str) -> str:
    """As NVIDIA's `fill_template.py` fills a template in: the queue's two limits are 0 unless stated."""
    pairs = {"max_queue_size": "0", "max_queue_delay_microseconds": "0"}
    for pair in arguments.split(","):
        name, _, value = pair.partition(":")
        pairs[name] = value
    return string.Template(template).safe_substitute(pairs)


DOCUMENTED = cases("inflight_batcher")
TEMPLATES = json.loads((CORPUS / "inflight_batcher.json").read_text())["templates"]
REALLY_WRONG = {"llama 2": ["leftover", "leftover", "parameter_value"]}
"""A comma is missing in the documented command: `accumulate_tokens:Truelogits_datatype:TYPE_FP32`."""


@pytest.mark.parametrize("case", DOCUMENTED)
def test_nvidias_documented_repositories_have_no_error_but_their_own(case, tmp_path):
    models = {model: filled(TEMPLATES[how["template"]], how["arguments"]) for model, how in DOCUMENTED[case].items()}
    findings = [f for f in lint(tmp_path, models) if f.rule != "missing_file"]  # their code is not in the corpus
    wrong = [finding.rule for finding in findings if finding.severity == "error"]
    assert wrong == REALLY_WRONG.get(case, []), [str(finding) for finding in findings]
    assert len(findings) - len(wrong) < 10  # a placeholder is told once a model, not once a parameter


NVIDIAS_ARGUMENTS = cases("llm_args")
FLAG_OF_THE_SERVER = NVIDIAS_ARGUMENTS.pop("deepseek-r1-throughput")
"""It states `kv_cache_free_gpu_memory_fraction` at its root, a flag of trtllm-serve that no LLM takes."""


@pytest.mark.parametrize("case", NVIDIAS_ARGUMENTS)
def test_nvidias_own_arguments_of_the_llm_api_have_no_error(case):
    document = yaml.safe_load(NVIDIAS_ARGUMENTS[case]["yaml"])
    assert check_llm_args(document, "1.3.0rc26").errors == ()


def test_a_flag_of_trtllm_serve_is_refused_with_the_argument_to_write():
    (error,) = check_llm_args(yaml.safe_load(FLAG_OF_THE_SERVER["yaml"]), "1.3.0rc26").errors
    assert (error.path, error.hint) == ("kv_cache_free_gpu_memory_fraction", "kv_cache_config.free_gpu_memory_fraction")


def llmapi_repository(directory: Path, arguments: dict[str, Any]) -> tuple[Finding, ...]:
    settings = {"triton_config": {"max_batch_size": 0, "decoupled": True}, "model": "checkpoint"}
    (directory / "tensorrt_llm" / "1").mkdir(parents=True)
    (directory / "tensorrt_llm" / "config.pbtxt").write_text('backend: "python"\n')
    (directory / "tensorrt_llm" / "1" / "model.py").write_text("class TritonPythonModel:\n    pass\n")
    (directory / "tensorrt_llm" / "1" / "model.yaml").write_text(yaml.safe_dump(settings | arguments))
    return lint_repository_directory(directory)


@pytest.mark.parametrize("case", NVIDIAS_ARGUMENTS)
def test_nvidias_own_arguments_have_no_error_in_a_repository_either(case, tmp_path):
    assert errors(llmapi_repository(tmp_path, yaml.safe_load(NVIDIAS_ARGUMENTS[case]["yaml"]))) == []


def test_a_key_that_no_recorded_version_has_is_a_warning_that_names_the_versions(tmp_path):
    (finding,) = llmapi_repository(tmp_path, {"max_batch_sizes": 4})
    assert (finding.rule, finding.severity) == ("arguments_unknown", "warning")
    assert "1.2.1 and 1.3.0rc26" in finding.message
    assert "max_batch_size" in finding.fix


@pytest.mark.parametrize(("version", "refused"), [("1.3.0rc26", True), ("1.3.0rc27", False), ("1.4.0", False)])
def test_a_key_that_looks_like_a_recorded_one_is_refused_only_where_all_keys_are_recorded(version, refused):
    check = check_llm_args({"max_batch_sizes": 4, "kv_cache_config": {"dtypes": "fp8"}}, version)
    assert bool(check.errors) is refused
    assert len(check.errors or [one for one in check.warnings if "unknown" in one.problem]) == 2


@pytest.mark.parametrize("document", [None, [], ["max_batch_size"], "max_batch_size", 4])
def test_a_file_that_is_no_mapping_is_one_error(document):
    (error,) = check_llm_args(document, "1.2.1").errors
    assert "must be a mapping" in str(error)


@pytest.mark.parametrize("value", [None, [], ["dtype"], "fp8", 4])
def test_a_section_that_is_no_mapping_is_an_error_that_names_it(value):
    (error,) = check_llm_args({"kv_cache_config": value}, "1.2.1").errors
    assert error.path == "kv_cache_config"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"tensor_parallel_size": -1}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size"),
        ({"pipeline_parallel_size": 2, "pp_partition": [16]}, "pp_partition"),
        ({"pipeline_parallel_size": 2, "pp_partition": [32, 0]}, "pp_partition"),
        ({"encode_only": True, "mm_encoder_only": True}, "encode_only"),
        ({"disable_mm_encoder": True, "mm_encoder_only": True}, "disable_mm_encoder"),
    ],
)
def test_what_each_key_allows_and_the_loader_refuses_is_an_error(document, path):
    (error,) = check_llm_args(document, "1.3.0rc26").errors
    assert error.path == path


def test_one_cause_is_one_warning():
    document = {"max_num_tokens": 4000, "max_seq_len": 8192, "kv_cache_config": {"tokens_per_block": 32}}
    warnings = check_llm_args(document, "1.3.0rc26").warnings
    assert len({warning.problem for warning in warnings}) == len(warnings) == 1
