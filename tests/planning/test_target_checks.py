"""What builders, servers and routers refuse is refused by the plan, with what to change; what they ignore is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judging import gpu_target, judge, refusal
from published import config_of

from llm_pipeline.adapters.tensorrt_llm.plan import target_refusal
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts
from llm_pipeline.planning.compatibility import Legal
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.planning.release_checks import check_recipes, check_routers, router_warnings
from llm_pipeline.planning.target_plan import target_warnings
from llm_pipeline.release.loading import load_release


def engine(accelerator: str = "L40S", **changes: Any) -> Target:
    return gpu_target(accelerator, engine="tensorrt_llm_engine", **changes)


def split(tensor: int = 1, pipeline: int = 1, **more: Any) -> dict[str, Any]:
    parallelism = {"tensor": tensor, "pipeline": pipeline, **more}
    return {"parallelism": parallelism, "accelerator_count": tensor * pipeline}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"build": {"flags": {"max_batch_size": 4}}}, "is set by the target"),
        ({"runtime": {"chunked_context": False}, "limits": {"maximum_batched_tokens": 512}}, "would be refused at run"),
        (split(2, expert=2), "engines do not spread experts"),
    ],
)
def test_what_the_engine_builder_and_its_repository_refuse(changes: dict[str, Any], reason: str):
    judged = refusal(engine(**changes), "fp8", tensorrt_llm_checkpoint=True)
    assert reason in judged.reason
    assert judged.nearest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"runtime": {"engine_args": {"max_batchsize": 8}}}, "max_batchsize: unknown key"),
        ({"runtime": {"engine_args": {"max_seq_len": 8}}}, "max_seq_len is rendered from the target already"),
        (
            {"runtime": {"engine_args": {"moe_config": {"backend": "FASTEST"}}}},
            "moe_config.backend: 'FASTEST' is not legal",
        ),
        (split(4, 3), "12 ranks do not fill 2 nodes of 8 GPUs"),
    ],
)
def test_what_the_llm_api_and_its_server_refuse(changes: dict[str, Any], reason: str):
    judged = refusal(gpu_target(**changes))
    assert reason in judged.reason
    assert judged.nearest


def test_an_engine_is_built_from_a_checkpoint_of_its_own_ranks():
    target = engine(**split(2, 2))
    judged = refusal(target, "fp8", tensorrt_llm_checkpoint=True)
    assert "is for 1 x 1 ranks (tensor x pipeline parallelism), t has 2 x 2" in judged.reason
    assert judged.nearest == "tensorrt_llm_ranks: {tensor: 2, pipeline: 2}"
    ranks = {"tensor": 2, "pipeline": 2}
    assert judge(target, "fp8", tensorrt_llm_checkpoint=True, tensorrt_llm_ranks=ranks) == Legal()
    assert refusal(engine(), "fp8", tensorrt_llm_checkpoint=True, tensorrt_llm_ranks=ranks).nearest.endswith(
        "{tensor: 1, pipeline: 1}"
    )


def test_options_that_an_engine_does_not_read_are_one_line():
    llm_args = {"engine_args": {"stream_interval": 4}}
    assert tuple(target_warnings(gpu_target(runtime=llm_args))) == ()
    assert tuple(target_warnings(gpu_target(build={"flags": {"workers": 1}, "time_limit_minutes": 5}))) == (
        "the LLM API does not read build.flags",
    )
    assert tuple(
        target_warnings(engine(runtime={**llm_args, "cuda_graphs": False, "scheduler": "max_utilization"}))
    ) == ("a compiled engine does not read runtime.cuda_graphs, runtime.engine_args",)
    kv_cache = {"free_memory_fraction": 0.85, "reuse_blocks": False}
    assert tuple(target_warnings(gpu_target(engine="vllm", runtime={"kv_cache": kv_cache, "cuda_graphs": False}))) == ()
    assert tuple(target_warnings(gpu_target(engine="vllm", runtime={**llm_args, "scheduler": "max_utilization"}))) == (
        "vLLM does not read runtime.scheduler",
    )


def test_doubtful_llm_args_are_told():
    target = gpu_target(runtime_version="1.1.0")
    assert target_refusal(target) is None
    assert any("1.1.0 may lack some of them" in line for line in target_warnings(target))


def test_warnings_of_a_target_are_in_its_plan_once_whatever_the_recipes(configs, edit):
    edit("targets/l40s.yaml", "runtime_version", "build: { flags: { workers: 1 } }\nruntime_version")
    plan = plan_release(configs / "releases" / "llama-3.1-8b-instruct.yaml", store_seconds=0)
    assert len(plan.targets[0].recipes) > 1
    assert [line for line in plan.warnings if "does not read" in line] == [
        "l40s: the LLM API does not read build.flags"
    ]


def released(configs, recipe_yaml: str) -> Any:
    """The engine release with another recipe."""
    (configs / "quantization" / "fp8_chat_engine.yaml").write_text(recipe_yaml)
    return load_release(configs / "releases" / "llama-3.1-8b-instruct-engine.yaml")


def facts_with(**changes: int) -> ModelFacts:
    """Llama-3.1-8B with other numbers in its config.json."""
    return read_facts(ModelDocuments(config_of("Llama-3.1-8B") | changes))


INT4 = "weights: int4_blockwise\n"


def test_layers_that_blocks_of_int4_do_not_divide_are_refused_before_the_download(configs):
    loaded = released(configs, INT4)
    check_recipes(loaded, facts_with())
    with pytest.raises(Unsupported, match=r"32 of 224 layers .* model\.layers\.0\.mlp\.down_proj has 14400"):
        check_recipes(loaded, facts_with(intermediate_size=14400))
    with pytest.raises(Unsupported, match=r"32 of 224 layers .*self_attn\.o_proj has 4000"):
        check_recipes(loaded, facts_with(head_dim=125))
    excluding = released(configs, INT4 + 'exclude: ["*lm_head*", "*.down_proj"]\n')
    check_recipes(excluding, facts_with(intermediate_size=14400))
    check_recipes(released(configs, "weights: int8_weight_only\n"), facts_with(intermediate_size=14400))
    with pytest.raises(Unsupported) as caught:
        check_recipes(loaded, facts_with(intermediate_size=14400))
    assert caught.value.hint.startswith("group_size: 64, or exclude these layers")
    check_recipes(released(configs, INT4 + "group_size: 64\n"), facts_with(intermediate_size=14400))
    with pytest.raises(ConfigError, match="group_size is for int4_awq"):
        released(configs, "weights: int8_weight_only\ngroup_size: 64\n")


ROUTER = "    router: { port: 18000, admin_port: 18001 }"
STAGING = "    staging: { http: 18400, grpc: 18401, metrics: 18402, openai: 18403 }"
GATEWAY = """    router:
      kind: gateway_api
      namespace: llm
      route: llm
      backends: { blue: { name: blue, port: 8000 }, green: { name: green, port: 8000 } }"""
COUNTED = """
    metrics:
      kind: prometheus
      url: http://prometheus:9090
      requests: requests_total
      errors: errors_total
      slot_label: service
      slots: { blue: blue, green: green }"""
STEPS = "  steps_percent: [5, 25, 50, 100]"


@pytest.fixture
def problem(configs: Path, edit):
    def told(router: str, steps: str = STEPS) -> str:
        edit("deployments/local.yaml", ROUTER, router)
        edit("policies/demo.yaml", STEPS, steps)
        with pytest.raises(ConfigError) as raised:
            plan_release(configs / "releases" / "demo.yaml", store_seconds=0)
        assert raised.value.hint
        return raised.value.message

    return told


def test_a_router_without_a_record_of_requests_needs_metrics(problem) -> None:
    assert problem(GATEWAY) == "target cpu: router gateway_api keeps no record of requests, and no metrics are named"


OPENAI_SLOTS = """    blue: { kind: openai, endpoint: { url: http://10.0.0.1:8000, openai_model: llm } }
    green: { kind: openai, endpoint: { url: http://10.0.0.2:8000, openai_model: llm } }"""


@pytest.fixture
def on_openai(configs: Path, edit):
    """Have the slots of the demo's place be servers with OpenAI's API."""

    def change(slots: str = OPENAI_SLOTS) -> None:
        lines = (configs / "deployments" / "local.yaml").read_text().splitlines()
        servers = [line for line in lines if line.startswith(("    blue:", "    green:"))]
        for line, new in zip(servers[:2], slots.splitlines(), strict=True):  # the place cpu is the first
            edit("deployments/local.yaml", line, new)

    return change


def test_an_envoy_splits_the_traffic_of_servers_with_openais_api(configs: Path, on_openai) -> None:
    on_openai()
    loaded = load_release(configs / "releases" / "demo.yaml")
    check_routers(loaded)
    assert list(router_warnings(loaded)) == [
        "cpu: nothing starts servers with OpenAI's API: before its canary, serve the release's checkpoint as llm in "
        "the slot that is not in production"
    ]


def test_a_gateway_passes_no_users_of_openais_api_on(problem, on_openai) -> None:
    on_openai()
    assert "router gateway_api passes on Triton's paths only" in problem(GATEWAY + COUNTED)


@pytest.mark.parametrize("url", ["http://vllm.example.com:8000", "https://10.0.0.1:8000"])
def test_an_envoy_needs_addresses_of_plain_http(problem, on_openai, url: str) -> None:
    on_openai(OPENAI_SLOTS.replace("http://10.0.0.1:8000", url))
    assert f"Envoy reaches servers by http:// and an IP address, and a slot's url is {url}" in problem(ROUTER)


def test_a_drill_needs_servers_that_are_started_here(problem, on_openai, edit) -> None:
    on_openai()
    edit("releases/demo.yaml", "policy: demo", f"policy: demo\n{DRILL}")
    assert "a drill needs servers that are started here" in problem(ROUTER)


def test_what_a_router_can_do_is_no_problem(configs: Path, edit) -> None:
    edit("deployments/local.yaml", ROUTER, GATEWAY + COUNTED)
    edit("policies/demo.yaml", STEPS, "  steps_percent: [0.1, 0.3, 5, 100]")
    check_routers(load_release(configs / "releases" / "demo.yaml"))


def test_what_users_can_reach_at_somebody_elses_router_is_told(configs: Path, edit) -> None:
    edit("deployments/local.yaml", ROUTER, GATEWAY + COUNTED)
    (told,) = router_warnings(load_release(configs / "releases" / "demo.yaml"))
    assert told.startswith("cpu: the operator of its gateway_api router has to refuse users paths beyond OpenAI's API")
    assert told in plan_release(configs / "releases" / "demo.yaml", store_seconds=0).warnings


OWN, OPENAI_ONLY = "engine: vllm\nserver: vllm", "only_openai: true, "
DRILL = "drill: { delay_milliseconds: 300 }"


@pytest.mark.parametrize(
    ("target", "router", "drill", "told"),
    [
        (OWN, OPENAI_ONLY, "", "target cpu: there is no command vllm beside "),
        (OWN, "", "", "target cpu: vllm has none of Triton's routes"),
        (OWN, OPENAI_ONLY, DRILL, "target cpu: a drill is made by the model's code in Triton, and vllm has none"),
        ("engine: openvino_cpu\nserver: vllm", OPENAI_ONLY, "",
         "target cpu: server of engine openvino_cpu may be triton, not vllm"),
    ],
)  # fmt: skip
def test_what_an_engines_own_server_lacks_is_told(
    configs: Path, edit, *, target: str, router: str, drill: str, told: str
) -> None:
    edit("targets/cpu.yaml", "engine: openvino_cpu", target)
    edit("deployments/local.yaml", ROUTER, ROUTER.replace("{ ", "{ " + router, 1))
    edit("releases/demo.yaml", "policy: demo", f"policy: demo\n{drill}")
    with pytest.raises(ConfigError) as refused:
        check_routers(load_release(configs / "releases" / "demo.yaml"))
    assert any(line.startswith(told) for line in refused.value.message.splitlines())
