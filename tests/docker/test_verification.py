"""The verification of a GPU host, run against the doubles: what it compares, what it reports, and how it ends.

The doubles answer as recorded, so every comparison passes; a tampered one must be found out by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Literal

import psutil
import pytest
from pydantic import BaseModel, ConfigDict

from llm_pipeline.artifacts.golden import GoldenPrompt, write_golden
from llm_pipeline.artifacts.host_facts import read_host_facts
from llm_pipeline.engines.failures import BuildFailed
from llm_pipeline.engines.llm_args.recorded_schema import DIALECTS, recorded_schema
from llm_pipeline.serving.triton_server import start_server
from llm_pipeline.verification import loading_steps, serving_steps
from llm_pipeline.verification.__main__ import main
from llm_pipeline.verification.bench import Bench, Prepared, PreparedCheckpoint
from llm_pipeline.verification.comparisons import flag_differences, read_help, schema_differences
from llm_pipeline.verification.installed import InstalledRuntime, PlainSchema
from llm_pipeline.verification.preparation import recipes
from llm_pipeline.verification.report import Seen, Skipped, take
from llm_pipeline.verification.steps import run_steps, steps_of

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
DOUBLES = TESTS / "doubles"
sys.path.insert(0, str(TESTS / "engines"))

from trtllm_checkpoint import write_trtllm_checkpoint

H100 = {"name": "NVIDIA H100 80GB HBM3", "compute_cap": "9.0", "memory.total": 81559, "memory.used": 500,
        "driver_version": "590.44.01"}  # fmt: skip
ANSWERS = {"Two and two are": " four.", "One, two,": " three, four."}
SHAPE = {"architectures": ["LlamaForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 384, "vocab_size": 512, "max_position_embeddings": 128}  # fmt: skip
STEPS = ("build_flags", "llm_args_schema", "load_none", "load_fp8", "load_nvfp4", "load_int4_awq", "memory_none",
         "engine_build", "engine_timing_cache", "engine_damaged_cache", "triton_engine")  # fmt: skip


@pytest.fixture(autouse=True)
def gpu_host(monkeypatch, tmp_path):
    """A host with one H100, TensorRT-LLM 1.2.1 and its `trtllm-build`, which are doubles."""
    programs, completions = tmp_path / "programs", tmp_path / "completions.json"
    programs.mkdir()
    for name in ("nvidia-smi", "trtllm-build"):
        (programs / name).symlink_to(DOUBLES / name)
    (programs / "python3").symlink_to(sys.executable)
    completions.write_text(json.dumps(ANSWERS))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{DOUBLES / 'tensorrt_llm_package'}{os.pathsep}{REPOSITORY}")
    monkeypatch.setenv("TRTLLM_DOUBLE_GPUS", json.dumps([H100]))
    monkeypatch.setenv("TRTLLM_DOUBLE_COMPLETIONS", str(completions))
    for name in ("CUDA_VISIBLE_DEVICES", "LLM_PIPELINE_CONTAINER", "TRTLLM_DOUBLE_FAILURE",
                 "TRTLLM_DOUBLE_VERSION", "TRTLLM_DOUBLE_WITHOUT_FIELD"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return programs


@pytest.fixture
def prepared(tmp_path):
    """What the model image would hand over: the baseline, four formats, one of which it could not make."""
    wanted = [recipe for recipe in recipes(64) if recipe.name != "fp8_kv_fp8"]
    directory, made = tmp_path / "prepared", []
    for recipe in wanted:
        refused = "RuntimeError: no compiler" if recipe.name == "int4_awq" else ""
        made.append(PreparedCheckpoint(recipe=recipe, refused=refused))
        algorithm = None if recipe.name == "none" else recipe.weights.upper()
        _write_checkpoint(directory / recipe.name, algorithm)
        if recipe.tensorrt_llm_checkpoint:
            write_trtllm_checkpoint(directory / recipe.name / "tensorrt_llm_checkpoint", kv_algorithm=None)
    Prepared(model="a little Llama", dtype="float16", checkpoints=tuple(made)).write(directory)
    return directory


def _write_checkpoint(directory: Path, algorithm: str | None) -> None:
    checkpoint = directory / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps(SHAPE))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (checkpoint / name).write_text("{}")
    (checkpoint / "model.safetensors").touch()
    if algorithm:
        quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": None}
        metadata = {"producer": {"name": "modelopt", "version": "0.37.0"}, "quantization": quantization}
        (checkpoint / "hf_quant_config.json").write_text(json.dumps(metadata))
    golden = [GoldenPrompt(prompt=prompt, completion=text, maximum_tokens=8) for prompt, text in ANSWERS.items()]
    write_golden(directory, golden)


@pytest.fixture
def check(prepared, tmp_path):
    """Runs `check`; the exit code and the rows of its report by step."""

    def check(*steps: str) -> tuple[int, dict[str, dict[str, object]]]:
        output = tmp_path / "results"
        code = main(["check", "--prepared", str(prepared), "--output", str(output), "--only", *steps])
        document = json.loads((output / "verification.json").read_text())
        return code, {row["step"]: row for row in document["rows"]}

    return check


@pytest.mark.slow
def test_what_is_as_recorded_passes_and_what_could_not_be_made_does_not(check, tmp_path, capsys):
    code, rows = check(*STEPS)
    outcomes = {step: row["outcome"] for step, row in rows.items()}
    assert outcomes == {
        **dict.fromkeys(STEPS, "PASS"),
        "load_nvfp4": "SKIPPED",
        "load_int4_awq": "FAIL",
        "memory_none": "SKIPPED",
        "triton_engine": "FAIL",
    }, rows
    assert code == 1
    assert "sm90" in rows["load_nvfp4"]["seen"]
    assert "no compiler" in rows["load_int4_awq"]["seen"]
    assert "no tritonserver here" in rows["triton_engine"]["seen"]
    assert "golden match 100% of 2" in rows["load_fp8"]["seen"]
    assert "67 flags" in rows["build_flags"]["seen"]
    assert "magic tag does not match" in rows["engine_damaged_cache"]["seen"].lower()
    kept = {path.name for path in (tmp_path / "results").iterdir() if path.is_file()}
    assert kept >= {"trtllm-build-help.txt", "llm_args_schema.json", "engine_config.json", "verification.txt"}
    printed = capsys.readouterr().out
    assert "gpus: NVIDIA H100 80GB HBM3 (sm90)" in printed
    assert "FAIL     load_int4_awq" in printed
    assert printed.endswith("7 PASS, 2 FAIL, 2 SKIPPED\n")


def test_a_tool_that_lost_a_flag_fails_and_the_flag_is_named(check, gpu_host):
    tampered = gpu_host / "trtllm-build"
    tampered.unlink()
    tampered.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        f"text = subprocess.run([sys.executable, {str(DOUBLES / 'trtllm-build')!r}, *sys.argv[1:]], "
        "capture_output=True, text=True).stdout\n"
        "print(text.replace('--reduce_fusion', '--fuse_reductions').replace('(default: 2048)', '(default: 4096)'))\n"
    )
    tampered.chmod(0o755)
    code, rows = check("build_flags")
    assert (code, rows["build_flags"]["outcome"]) == (1, "FAIL")
    assert rows["build_flags"]["differences"] == [
        "--reduce_fusion: recorded, not installed",
        "--max_batch_size: default 2048 recorded, 4096 installed",
        "--fuse_reductions: installed, not recorded (enable|disable, default disable)",
    ]


def test_llm_args_that_lost_a_key_fail_and_the_key_is_named(check, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_WITHOUT_FIELD", "stream_interval")
    code, rows = check("llm_args_schema")
    assert (code, rows["llm_args_schema"]["outcome"]) == (1, "FAIL")
    assert rows["llm_args_schema"]["differences"] == ["LLM args.stream_interval: recorded, not installed"]


def test_another_version_is_compared_with_what_is_recorded_of_it_and_has_no_engines(check, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", "1.3.0rc24")
    code, rows = check("build_flags", "llm_args_schema", "engine_build")
    assert code == 0
    assert [row["outcome"] for row in rows.values()] == ["SKIPPED", "PASS", "SKIPPED"]
    assert "llm_args_main" in rows["llm_args_schema"]["seen"]


def test_a_checkpoint_that_answers_otherwise_fails_with_an_example(check, tmp_path):
    (tmp_path / "completions.json").write_text(json.dumps(dict.fromkeys(ANSWERS, "eh")))
    _, rows = check("load_none", "time_limit")
    assert "instead of ' four.'" in rows["load_none"]["seen"]
    assert rows["time_limit"]["outcome"] == "SKIPPED"


def test_a_process_that_outlives_the_time_limit_is_named(check, monkeypatch):
    class Builder:
        """Leaves a process in a session of its own, as MPI does."""

        def build(self, *_: object) -> None:
            orphans.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
            while not psutil.Process(orphans[0].pid).environ():  # Popen returns before the new program has its own
                time.sleep(0.01)
            raise BuildFailed("stopped after its time limit")

    orphans: list[subprocess.Popen[bytes]] = []
    check("load_none")
    monkeypatch.setattr(loading_steps, "engine_builder", lambda _: Builder())
    monkeypatch.setattr(loading_steps, "_GONE_SECONDS", 0.0)
    _, rows = check("time_limit")
    orphans[0].kill()
    assert rows["time_limit"]["differences"] == [f"still runs: sleep ({orphans[0].pid})"]


def test_a_time_limit_that_leaves_nothing_passes(check):
    code, rows = check("load_none", "time_limit")
    assert (code, rows["time_limit"]["outcome"]) == (0, "PASS"), rows
    assert "while it loaded" in rows["time_limit"]["seen"]


def test_a_step_that_does_not_exist_is_refused(prepared, tmp_path, capsys):
    arguments = ["check", "--prepared", str(prepared), "--output", str(tmp_path / "results"), "--only", "flags"]
    assert main(arguments) == 4
    assert "no such step: flags" in capsys.readouterr().err


def test_the_help_is_read_at_any_width():
    for columns in ("60", "100000"):
        answer = subprocess.run(
            [DOUBLES / "trtllm-build", "--help"], capture_output=True, text=True, check=True,
            env={**os.environ, "COLUMNS": columns},
        )  # fmt: skip
        assert flag_differences(answer.stdout) == ()


def test_help_texts_of_other_shapes_are_read():
    text = (
        "options:\n  --size S, --old_size S\n                   how large, see --help\n"
        "  --on             switch\n  -v {a,b}, --verbose {a,b}  words (default: a)\n\nA group:\n  --path P [P ...]\n"
    )
    assert [(flag.names, flag.choices, flag.takes_value, flag.default) for flag in read_help(text)] == [
        (("--size", "--old_size"), None, True, None),
        (("--on",), None, False, None),
        (("--verbose",), ("a", "b"), True, "a"),
        (("--path",), None, True, None),
    ]


class _Colour(Enum):
    red, blue = "red", "blue"


class _Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1


class _Args(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    tokenizer: _Inner | object | None = None
    colour: _Colour = _Colour.red
    mode: Literal["fast"] | None = None
    inner: _Inner | None = None


def test_a_pydantic_class_with_any_types_is_compared_with_a_schema_written_by_hand():
    reference = {"anyOf": [{"$ref": "#/$defs/_Inner"}, {"type": "null"}], "default": None}
    recorded = {
        "properties": {
            "tokenizer": {"type": ["string", "null"]},
            "colour": {"enum": ["red", "blue"], "default": "red"},
            "mode": {"enum": ["fast", None], "default": None},
            "inner": reference,
        },
        "additionalProperties": False,
        "$defs": {"_Inner": {"properties": {"size": {"type": "integer", "default": 1}}, "additionalProperties": False}},
    }
    schema = _Args.model_json_schema(schema_generator=PlainSchema)
    assert schema_differences(recorded, schema) == ()

    recorded["properties"]["colour"]["enum"].append("green")
    recorded["properties"]["speed"] = {"type": "number", "x-seen": "elsewhere"}
    recorded["$defs"]["_Inner"]["properties"]["size"] = {"type": "string", "default": 2}
    del recorded["properties"]["mode"]
    assert schema_differences(recorded, schema) == (
        "LLM args.speed: recorded, not installed (recorded with a doubt: elsewhere)",
        'LLM args.colour: "blue"|"green"|"red" recorded, "blue"|"red" installed',
        "_Inner.size: string recorded, integer installed",
        "_Inner.size: default 2 recorded, 1 installed",
        'LLM args.mode: installed, not recorded ("fast"|null, default null)',
    )


def test_the_two_recorded_editions_differ_from_each_other():
    one_two, later = (recorded_schema(dialect).document for dialect in DIALECTS)
    assert "LLM args.fail_fast_on_attention_window_too_large: recorded, not installed" in schema_differences(
        one_two, later
    )


def test_a_step_that_breaks_is_a_failure_and_one_that_cannot_be_taken_is_skipped():
    def skip() -> Seen:
        raise Skipped("no second GPU")

    def fail() -> Seen:
        raise KeyError("plugin_config")

    assert (take("one", skip).outcome, take("one", skip).seen) == ("SKIPPED", "no second GPU")
    assert (take("two", fail).outcome, take("two", fail).seen) == ("FAIL", "KeyError: 'plugin_config'")
    assert take("three", lambda: Seen("all", ["but one"])).outcome == "FAIL"


def test_every_step_is_in_the_document_and_the_document_names_no_other(prepared, tmp_path):
    bench = type("Bench", (), {"prepared": Prepared.read(prepared)})()
    document = (REPOSITORY / "docs" / "verification.md").read_text()
    steps = {step for step in steps_of(bench) if not step.startswith(("load_", "memory_"))}
    missing = {step for step in steps | {"load_<recipe>", "memory_<recipe>"} if f"`{step}`" not in document}
    assert missing == set()


@pytest.fixture
def run_script(tmp_path):
    """Runs docker/verify-gpu.sh with a double of `docker` that only writes down what it is asked, and may fail."""
    programs, asked = tmp_path / "docker_double", tmp_path / "asked.jsonl"
    programs.mkdir()
    (programs / "docker").write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"with open({str(asked)!r}, 'a') as file: file.write(json.dumps(sys.argv[1:]) + chr(10))\n"
        "print('sha256:0123' if 'inspect' in sys.argv else '')\n"
        "raise SystemExit(1 if 'check' in sys.argv and '--only' in sys.argv else 0)\n"
    )
    (programs / "docker").chmod(0o755)

    def run(*options: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        command = [REPOSITORY / "docker" / "verify-gpu.sh", "--output", tmp_path / "out put", *options]
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return done, [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []

    return run


def test_the_script_builds_both_images_and_runs_both_commands_without_privileges(run_script, tmp_path):
    image = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:" + "a" * 64
    done, asked = run_script("--base", image, "--model", "a/model", "--gpu", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    builds, runs = ([one for one in asked if one[0] == verb] for verb in ("build", "run"))
    assert [f"TRITON_IMAGE={image}" in build for build in builds] == [False, True]
    assert all(("--read-only" in run, "--cap-drop" in run, run[run.index("--gpus") + 1]) == (True, True, "device=1")
               for run in runs)  # fmt: skip
    assert all(not run[run.index("--user") + 1].startswith("0:") for run in runs)
    assert all(f"{tmp_path / 'out put'}:/verification" in run for run in runs)
    assert ["HF_TOKEN" in run for run in runs] == [True, False]
    assert runs[0][-5:] == ["prepare", "--output", "/verification/prepared", "--model", "a/model"]
    assert runs[1][-2:] == ["--image", image]
    assert asked[-1][:2] == ["rm", "--force"]


def test_the_script_ends_with_the_outcome_of_the_steps(run_script):
    done, asked = run_script("--only", "build_flags")
    assert done.returncode == 1
    assert "is a tag; give --base with its digest" in done.stderr
    assert "verification.json" in done.stdout
    assert asked[-2][-2:] == ["--only", "build_flags"]


@pytest.mark.parametrize("options", [("--gpus", "all"), ("--gpu",)])
def test_the_script_refuses_what_it_does_not_know_before_it_does_anything(run_script, options):
    done, asked = run_script(*options)
    assert (done.returncode, asked) == (4, [])
    assert options[0] in done.stderr


def write_byte_tokenizer(path: Path) -> None:
    """A tokenizer whose tokens are bytes (the alphabet is GPT-2's), after `<s>` and `</s>`."""
    printable, others = [*range(33, 127), *range(161, 173), *range(174, 256)], iter(range(256, 512))
    alphabet = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    parts = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *alphabet])}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    path.write_text(json.dumps({"version": "1.0", "pre_tokenizer": parts, "decoder": parts, "model": model}))


def with_the_double(repository, ports, *, links, **options):
    """What is beside model.py can be imported by it."""
    double = {"llm/1/tensorrt_llm": DOUBLES / "tensorrt_llm_package" / "tensorrt_llm"}
    completions = options["environment"]["TRTLLM_DOUBLE_COMPLETIONS"]
    readable = ports.model_copy(update={"readable": (completions,)})
    return start_server(repository, readable, links={**links, **double}, **options)


@pytest.mark.slow
def test_our_model_is_probed_behind_a_real_triton(prepared, check, monkeypatch, tmp_path):
    """The server is real, TensorRT-LLM in it is the double."""
    pytest.importorskip("tritonclient")
    home, python = REPOSITORY / ".envs" / "triton", REPOSITORY / ".envs" / "model" / "bin" / "python"
    if not home.exists() or not python.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    write_byte_tokenizer(prepared / "none" / "checkpoint" / "tokenizer.json")
    monkeypatch.setattr(serving_steps, "start_server", with_the_double)
    check("load_none")
    bench = Bench(
        source=prepared,
        prepared=Prepared.read(prepared),
        output=tmp_path / "results",
        host=read_host_facts(),
        runtime=InstalledRuntime(version="1.2.1", llm_args_class="", llm_args_schema={}),
        image="",
        triton_home=home,
        python=python,
        server_environment={
            "TRTLLM_DOUBLE_COMPLETIONS": str(tmp_path / "completions.json"),
            "TRTLLM_DOUBLE_SECONDS_PER_TOKEN": "0.005",
        },
    )
    row = run_steps(bench, ["triton_llmapi"])[0]
    assert row.outcome == "PASS", row
    assert "models llm" in row.seen
    assert "llm_active_requests, llm_input_tokens_total, llm_requests_total, llm_tokens_total" in row.seen
    assert (tmp_path / "results" / "triton_llmapi.log").is_file()
