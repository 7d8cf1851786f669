"""A release of any model, from a directory: judged by what the model is."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from judging import cpu_target, gpu_target, recipe
from published import config_of, facts_of
from tiny_tokenizer import TOKENIZER

from llm_pipeline.base.errors import ConfigError, ExitCode, PipelineError, Unsupported
from llm_pipeline.catalog.tables import TRACED_WITH
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.layout import expected_tensors
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts, stated_context
from llm_pipeline.model_facts.words import ConfigWords
from llm_pipeline.planning.compatibility import Legal, Refused, judge_compatibility
from llm_pipeline.planning.memory import head_parameters
from llm_pipeline.planning.plan import Plan, plan_release
from llm_pipeline.planning.release_checks import recipe_problems, scorer_problems
from llm_pipeline.planning.target_plan import judge_model

CONFIGS = Path(__file__).parents[2] / "configs"


def write_model(root: Path, config: dict[str, Any]) -> None:
    """A directory with a model's config.json, and weights of its size that take no space on the disk."""
    root.mkdir()
    (root / "config.json").write_text(json.dumps(config))
    (root / "generation_config.json").write_text('{"eos_token_id": 2}')
    (root / "tokenizer.json").write_bytes(TOKENIZER)
    plain = ConfigWords({key: value for key, value in config.items() if key != "quantization_config"})
    header, end = {}, 0
    for name, dtype, shape, size in expected_tensors(plain) or ():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (root / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)


@pytest.fixture
def release(configs: Path, tmp_path: Path, edit: Any) -> Any:
    """The release for small GPUs, of another model in a directory."""

    def of(config: dict[str, Any], recipes: str = "none", targets: str = "l4") -> Path:
        write_model(tmp_path / "model", config)
        path = configs / "releases" / "qwen2.5-7b-instruct.yaml"
        text = path.read_text()
        begin, end = text.index("  sizes: {"), text.index("  }\n", text.index("  sizes: {")) + 4
        text = text[:begin] + text[end:]
        text = text.replace("model:\n", f"model:\n  source: file://{tmp_path}/model\n", 1)
        text = text.replace("recipes: [int4_awq_chat]", f"recipes: [{recipes}]").replace("[a10, l4]", f"[{targets}]")
        path.write_text(text)
        return path

    return of


def planned(path: Path) -> Plan:
    return plan_release(path, store_seconds=0)


def error_of(path: Path) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        planned(path)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    return caught.value


def test_a_model_of_70b_in_a_directory_does_not_fit_one_l4(release: Any):
    error = error_of(release(config_of("Llama-3.1-70B")))
    assert isinstance(error, Unsupported)
    assert "recipe none on target l4: 141.1 GB weights" in error.message


def test_a_model_that_fits_is_planned_without_a_name_that_anybody_knows(release: Any):
    plan = planned(release(config_of("Qwen2.5-0.5B")))
    assert plan.facts is not None
    assert plan.facts.parameters == 494_032_768
    assert plan.targets[0].recipes[0].legal


@pytest.mark.parametrize(
    "missing", ["num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"]
)
def test_what_a_model_does_not_say_is_named_with_how_to_state_it(missing: str):
    config = {key: value for key, value in config_of("Llama-3.1-8B").items() if key != missing}
    with pytest.raises(ConfigError) as caught:
        read_facts(ModelDocuments(config))
    assert missing in caught.value.message
    assert f"model.sizes.{missing}" in caught.value.hint


@pytest.mark.parametrize(
    "broken",
    [
        {"num_attention_heads": 2**20},
        {"num_hidden_layers": 2**20},
        {"max_position_embeddings": 2**36},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 8192, "factor": float("inf")}},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 8192, "factor": float("nan")}},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 10**400, "factor": 2.0}},
    ],
)
def test_a_number_that_no_model_has_is_one_clear_error(broken: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"the size of the model is not known: its config\.json"):
        read_facts(ModelDocuments(config_of("Llama-3.1-8B") | broken))


def test_layers_of_a_kind_that_is_not_known_are_an_error():
    config = config_of("Llama-3.1-8B") | {"layer_types": ["conv"] * 32}
    with pytest.raises(ConfigError, match="has layers of kind 'conv', whose cache plan does not know"):
        read_facts(ModelDocuments(config))


def test_an_engine_knows_the_context_as_planning_does_or_knows_that_it_does_not():
    assert stated_context(GPT2) == 128
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert stated_context(config_of("Qwen3-8B") | {"rope_scaling": scaling}) == 131_072
    assert stated_context(config_of("Gemma-3-1B")) == 32_768
    assert stated_context({"model_type": "llama"}) is None


GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4,
    "n_positions": 128, "vocab_size": 512,
}  # fmt: skip


def gpt2() -> ModelFacts:
    from llm_pipeline.model_facts.grouping import HeldTensor

    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (512, 128), "wpe.weight": (128, 128)}
    for layer in range(2):
        inside: dict[str, tuple[int, ...]] = {
            "attn.c_attn.weight": (128, 384), "attn.c_proj.weight": (128, 128), "mlp.c_fc.weight": (128, 512),
            "mlp.c_proj.weight": (512, 128), "attn.c_attn.bias": (384,), "ln_1.weight": (128,),
        }  # fmt: skip
        shapes |= {f"h.{layer}.{name}": shape for name, shape in inside.items()}
    tensors = [HeldTensor(name, "F32", shape, 0) for name, shape in shapes.items()]
    return read_facts(ModelDocuments(GPT2, tensors=tensors))


def test_transposed_layers_are_seen_and_no_recipe_is_made_of_them():
    facts = gpt2()
    assert facts.context_length == 128
    assert facts.kv_elements_per_token == 2 * 2 * 128
    assert {(group.rows, group.columns) for group in facts.matrices} == {(384, 128), (128, 128), (512, 128), (128, 512)}
    assert "Conv1D" in next(recipe_problems(recipe("fp8"), facts))
    assert not [*recipe_problems(recipe("none"), facts)]


def test_a_model_that_is_quantized_already_takes_no_other_recipe_than_none():
    for name in ("gpt-oss-20b", "DeepSeek-V3"):
        assert "quantized already" in next(recipe_problems(recipe("fp8"), facts_of(name)))
        assert not [*recipe_problems(recipe("none"), facts_of(name))]


def test_quantized_experts_are_scored_by_vllm_and_are_not_exported_in_int4():
    mixtral, without = facts_of("Mixtral-8x7B"), ["*lm_head*", "*experts*"]
    (line,) = scorer_problems("hf", recipe("fp8"), mixtral)
    assert line.endswith('-> exclude: ["*lm_head*", "*experts*"], or evaluation.scorer: vllm, on a host that has it')
    assert not [*scorer_problems("vllm", recipe("fp8"), mixtral), *recipe_problems(recipe("fp8"), mixtral)]
    assert not [*scorer_problems("hf", recipe("fp8", exclude=without), mixtral)]
    assert "INT4 fails" in next(recipe_problems(recipe("int4_awq", exclude=without), mixtral))
    assert not [*recipe_problems(recipe("int4_awq"), facts_of("Llama-3.1-8B"))]
    (line,) = recipe_problems(recipe("fp8"), mixtral.model_copy(update={"model_type": "gpt_oss"}))
    assert line.endswith('-> exclude: ["*lm_head*", "*experts*"]')
    judged = judge_compatibility(cpu_target(), recipe("fp8"), "bfloat16", quantized_experts=True)
    assert isinstance(judged, Refused)
    assert 'exclude: ["*lm_head*", "*experts*"]' in judged.nearest


def test_architectures_of_which_no_export_passes_are_refused():
    facts = facts_of("Llama-3.1-8B").model_copy(update={"model_type": "falcon"})
    assert "leaves its layers unquantized" in next(recipe_problems(recipe("fp8"), facts))


def test_a_head_of_another_name_is_kept_as_the_recipe_means_it():
    facts = facts_of("Llama-3.1-8B").model_copy(update={"head": "embed_out"})
    assert not [*recipe_problems(recipe("fp8"), facts)]
    assert head_parameters(facts, recipe("fp8")) == (0, facts.head_parameters)
    assert head_parameters(facts, recipe("fp8", exclude=["*embed_out*"])) == (0, facts.head_parameters)
    assert head_parameters(facts, recipe("fp8", exclude=[])) == (facts.head_parameters, 0)


def test_calibration_with_a_chat_template_needs_one():
    chat = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8, "chat_template": True}
    asked = recipe("fp8").model_copy(update={"calibration": recipe("fp8").calibration})
    asked = type(asked).model_validate({**asked.model_dump(), "calibration": chat})
    without = facts_of("Llama-3.1-8B").model_copy(update={"chat_templates": ()})
    assert "the model has none" in next(recipe_problems(asked, without))
    for known in (("default",), None):
        assert not [*recipe_problems(asked, without.model_copy(update={"chat_templates": known}))]


def test_a_model_that_no_token_ends_is_refused(release: Any, tmp_path: Path):
    path = release({key: value for key, value in config_of("Llama-3.2-1B").items() if key != "eos_token_id"})
    (tmp_path / "model/generation_config.json").unlink()
    error = error_of(path)
    assert "no token ends the model's answers" in error.message
    assert "generation_config.json has eos_token_id" in error.message


def test_named_chat_templates_need_a_default(release: Any, tmp_path: Path):
    path = release(config_of("Llama-3.2-1B"))
    named = [{"name": "rag", "template": "{{ messages }}"}, {"name": "tool_use", "template": "{{ messages }}"}]
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    error = error_of(path)
    assert "the model's chat templates are rag, tool_use, and none of them is the default" in error.message
    assert "evaluation.chat_template: false" in error.message
    path.write_text(path.read_text().replace("  served_tasks:", "  chat_template: false\n  served_tasks:"))
    assert planned(path).facts


def test_float16_of_a_model_in_bfloat16_is_warned_of_and_on_a_cpu_its_speed_too(release: Any, configs: Path):
    path, deployment = release(config_of("Llama-3.2-1B")), configs / "deployments" / "gpu-cluster.yaml"
    told = ("stored in bfloat16, and baseline.dtype is float16", "scored on a CPU in float16")
    seen = []
    for asked, host in (("bfloat16", True), ("float16", True), ("float16", False)):
        path.write_text(path.read_text().replace("dtype: bfloat16", f"dtype: {asked}"))
        if not host:
            document = yaml.safe_load(deployment.read_text())
            del document["quantization_host"]
            deployment.write_text(yaml.safe_dump(document))
        seen.append([any(one in line for line in planned(path).warnings) for one in told])
    assert seen == [[False, False], [True, False], [True, True]]


@pytest.mark.parametrize(
    ("model", "transformers", "refused"),
    [
        ("Llama-3.1-8B", "5.5.4", False), ("Mixtral-8x7B", "5.5.4", False), ("Gemma-2-9B", "5.5.4", False),
        ("Gemma-3-1B", "5.5.4", False), ("Gemma-2-9B", "5.6.0", True), ("Gemma-2-9B", "4.57.3", False),
        ("Gemma-2-9B", None, False),
    ],
)  # fmt: skip
def test_the_cpu_engine_takes_what_its_exporter_traces_with_the_transformers_that_is_installed(
    model: str, transformers: str | None, refused: bool
):
    assert judge_model(cpu_target(), recipe("fp8"), facts_of(model), transformers).legal is not refused
    assert judge_model(gpu_target(), recipe("fp8"), facts_of(model), transformers).legal


@pytest.mark.parametrize(("query_heads", "refused"), [(8, False), (32, True)])
def test_phi_is_not_traced_where_heads_share_keys_and_values(query_heads: int, refused: bool):
    phi = facts_of("Llama-3.1-8B").model_copy(update={"model_type": "phi", "attention_heads": query_heads})
    found = judge_model(cpu_target(), recipe("fp8"), phi, "5.5.4")
    assert (isinstance(found, Refused) and "8 key and value heads, for 32 query heads" in found.reason) is refused


def test_a_model_that_sees_is_not_traced_as_one_that_reads():
    seeing = facts_of("Gemma-3-1B").model_copy(update={"architecture": "Gemma3ForConditionalGeneration"})
    refused = judge_model(cpu_target(), recipe("fp8"), seeing, "5.5.4")
    assert isinstance(refused, Refused)
    assert "with its encoders only" in refused.reason
    assert judge_model(gpu_target(), recipe("fp8"), seeing, "5.5.4").legal


def test_the_exporter_of_the_table_is_the_one_that_is_pinned():
    pins = (Path(__file__).parents[2] / "docker" / "constraints" / "model-py311.txt").read_text()
    table = json.loads((CONFIGS.parent / "llm_pipeline/catalog/data/openvino_exporter.json").read_text())
    assert f"{table['exporter']}=={table['version']}\n" in pins
    for compared in TRACED_WITH.values():  # another version is to be compared again, by the corpus
        assert f"\ntransformers=={compared}\n" in pins


def test_an_architecture_that_tensorrt_llm_does_not_list_is_a_doubt():
    assert doubts("fp8", "Llama-3.1-8B") == ()
    assert "Gemma2ForCausalLM is not in" in doubts("fp8", "Gemma-2-9B")[0]
    assert "quantized already (mxfp4)" in doubts("none", "gpt-oss-20b")[0]


def doubts(weights: str, model: str) -> tuple[str, ...]:
    judged = judge_model(gpu_target(), recipe(weights), facts_of(model), None)
    assert isinstance(judged, Legal)
    return judged.warnings


INT8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    }},
}  # fmt: skip


def ready(configs: Path, directory: Path, config: dict[str, Any]) -> None:
    """A recipe of the name `ready`, of a checkpoint that somebody else quantized."""
    write_model(directory, config)
    (configs / "quantization" / "ready.yaml").write_text(f"source: file://{directory}\n")


def test_a_ready_checkpoint_of_another_model_is_refused_with_what_differs(configs: Path, tmp_path: Path, release: Any):
    theirs = config_of("Qwen2.5-7B") | {"quantization_config": INT8}
    ready(configs, tmp_path / "theirs", theirs)
    error = error_of(release(config_of("Qwen2.5-0.5B"), recipes="ready"))
    assert f"recipe ready: file://{tmp_path}/theirs is of another model: hidden_size 3584, not 896" in error.message
    assert error.hint == "remove or change them; nothing was started"


def test_a_ready_checkpoint_that_is_not_quantized_is_refused(configs: Path, tmp_path: Path, release: Any):
    ready(configs, tmp_path / "theirs", config_of("Qwen2.5-0.5B"))
    error = error_of(release(config_of("Qwen2.5-0.5B"), recipes="ready"))
    assert "are not quantized -> release it as a model of its own" in error.message
