from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.release.loading import load_release

COMMITTED = sorted((Path(__file__).parents[2] / "configs" / "releases").glob("*.yaml"))


def mistake_of(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_release(path)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    return caught.value


def assert_says_once(error: ConfigError, path: Path, line: int, *fragments: str) -> None:
    """One clear error: the file and line once, and what is wrong there."""
    text = str(error)
    assert f"{path}:{line}: " in text, text
    assert len(re.findall(r"\.yaml:\d+", text)) == 1, text
    for fragment in fragments:
        assert fragment in text, text


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_release_config_loads(path: Path):
    assert load_release(path).release.name == path.stem


@pytest.mark.parametrize(
    ("name", "change", "fragments"),
    [
        ("releases/demo.yaml", ("  required: true", "  requird: true"),
         ("unknown key approval.requird", "did you mean required?")),
        ("releases/demo.yaml", ("targets: [cpu]", "target: [cpu]"),  # and not as a missing key again
         ("unknown key target", "did you mean targets?")),
        ("releases/demo.yaml", ("  duration_seconds: 6", "  duration_seconds: 6s"),
         ("workload.duration_seconds", "valid number", "'6s'")),
        ("releases/demo.yaml", ("  dtype: float16", "  dtype: float8"),
         ("baseline.dtype", "'float16' or 'bfloat16'", "'float8'")),
        ("releases/demo.yaml", ("  id: demo/tiny-llama", "  id: tiny-llama"), ("model.id", "'tiny-llama'")),
        ("releases/demo.yaml", ("  revision: main", "  source: /models/tiny-llama"),
         ("model.source: not in the form that it takes: `hub`, a directory (`file:///absolute/path`)",
          "S3 prefix (`s3://bucket/prefix`) (got '/models/tiny-llama')")),
        ("quantization/int4_naive.yaml", ("weights: int4_blockwise", "source: /models/ready"),
         ("source: not in the form that it takes", "`organisation/name` on the hub, a directory (`file:///absolute")),
        ("releases/demo.yaml", ("policy: demo", "policy: demos"),
         ("policy: there is no policies/demos.yaml", "policies/ has: demo, demo-chat, mlperf-")),
        ("releases/demo.yaml", ("recipes: [int4_naive,", "recipes: [int3_naive,"),
         ("recipes: there is no quantization/int3_naive.yaml", "int4_naive")),
        ("releases/demo.yaml", ("targets: [cpu]", "targets: [cpu, cpu]"), ("targets: cpu is named twice",)),
        ("releases/demo.yaml", ("targets: [cpu]", "targets: [h100]"),
         ("targets: h100 has no place in deployment local", "add places.h100")),
        ("releases/demo.yaml", ("  prompts: workloads/demo.jsonl", "  prompts: ../outside.jsonl"),
         ("workload.prompts: ../outside.jsonl lies outside",)),
        ("releases/demo.yaml", ("policy: demo", "policy: !!python/name:os.system"),
         ("policy: not valid YAML", "the tag '!!python/name:os.system'")),
        ("policies/demo.yaml", ("  attainment: 0.95", "  attainment: 95"),  # a percentage
         ("load_test.attainment", "must be 0.01 to 0.999999", "95")),
        ("targets/cpu.yaml", ("engine: openvino_cpu", "engine: tensorrtllm"), ("engine", "'tensorrtllm'")),
    ],
)  # fmt: skip
def test_a_mistake_is_one_error_that_names_file_line_and_key(configs, edit, name, change, fragments):
    line = edit(name, *change)
    assert_says_once(mistake_of(configs / "releases" / "demo.yaml"), configs / name, line, *fragments)


STEPS = "canary: steps_percent must rise and end at 100"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "releases/demo.yaml", ("served_tasks: [demo_generate]", "served_tasks: [gsm8k]"),
            "evaluation: served_tasks ['gsm8k'] are not in tasks",
        ),
        ("policies/demo.yaml", ("[5, 25, 50, 100]", "[25, 5, 50, 100]"), STEPS),
        ("policies/demo.yaml", ("[5, 25, 50, 100]", "[5, 25, 50]"), STEPS),
        ("policies/demo.yaml", ("[5, 25, 50, 100]", "[]"), STEPS),
        ("deployments/local.yaml", ("http: 18410", "http: 18400"), "places: ports [18400] are used twice"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_in_a_section_is_told_at_the_section(configs, edit, name, change, words):
    edit(name, *change)
    line = (configs / name).read_text().splitlines().index(words[: words.index(":") + 1]) + 1
    assert_says_once(mistake_of(configs / "releases" / "demo.yaml"), configs / name, line, words)


EXAMPLE = "releases/llama-3.1-8b-instruct.yaml"


def with_expected(edit, expected: str) -> int:
    """The example release with an expected score; its line is returned."""
    return edit(EXAMPLE, "  dtype: bfloat16\n", f"  dtype: bfloat16\n  expected: {{ {expected} }}\n") + 1


def test_an_expected_score_of_a_task_that_is_not_asked_is_refused(configs: Path, edit):
    with_expected(edit, "mmlu: { minimum: 0.7, maximum: 0.8, source: model card }")
    assert "baseline.expected names mmlu, not among evaluation.tasks" in str(mistake_of(configs / EXAMPLE))


@pytest.mark.parametrize(
    "content",
    [
        "minimum: 0.9, maximum: 0.8, source: card",
        "minimum: -0.1, maximum: 0.8, source: card",
        "minimum: .nan, maximum: 0.8, source: card",
        "minimum: 0.1, maximum: .inf, source: card",
        "minimum: 0.1, maximum: 0.8",
        "minimum: 0.1, maximum: 0.8, source: ''",
    ],
)
def test_an_expected_score_is_a_finite_range_with_a_source(configs: Path, edit, content: str):
    line = with_expected(edit, f"gsm8k: {{ {content} }}")
    text = str(mistake_of(configs / EXAMPLE))
    assert f"{configs / EXAMPLE}:{line}: " in text
    assert "baseline.expected.gsm8k" in text or "expected: not valid YAML" in text


def test_missing_keys_are_all_told_at_once(configs: Path):
    path = configs / "releases" / "demo.yaml"
    path.write_text("policy: demo\n")
    text = str(mistake_of(path))
    for key in ("model", "recipes", "targets", "deployment", "evaluation", "workload"):
        assert f"missing key {key}" in text


def test_of_very_many_mistakes_the_first_are_told_and_the_others_counted(configs: Path, edit):
    edit("releases/demo.yaml", "recipes: [int4_naive, int4_awq, fp8]", f"recipes: [{', '.join(['{}'] * 200)}]")
    lines = mistake_of(configs / "releases" / "demo.yaml").message.splitlines()
    assert len(lines) == 21
    assert "recipes.19" in lines[19]
    assert lines[20] == "... and 180 more"


def test_a_directory_names_the_files_in_it(configs: Path):
    assert str(configs / "releases" / "demo-baseline.yaml") in mistake_of(configs / "releases").hint
    (configs.parent / "mine" / "releases").mkdir(parents=True)
    (own := configs.parent / "mine" / "releases" / "first.yaml").touch()
    assert mistake_of(configs.parent / "mine").hint == f"name a file in it, such as {own}"


def test_a_missing_file_lists_what_is_there(configs: Path):
    text = str(mistake_of(configs / "releases" / "dmeo.yaml"))
    assert "dmeo.yaml: no such file" in text
    assert "demo-baseline" in text


def test_a_recipe_whose_calibration_set_is_missing_is_named(configs: Path, edit):
    line = edit("quantization/fp8.yaml", "calibration/demo.jsonl", "calibration/none.jsonl")
    error = mistake_of(configs / "releases" / "demo.yaml")
    fragments = ("calibration.sources: calibration/none.jsonl does not exist",)
    assert_says_once(error, configs / "quantization" / "fp8.yaml", line, *fragments)


def test_a_file_whose_name_key_differs_is_refused(configs: Path):
    path = configs / "targets" / "cpu.yaml"
    path.write_text(path.read_text().replace("name: cpu\n", "") + "name: gpu\n")
    line = len(path.read_text().splitlines())
    error = mistake_of(configs / "releases" / "demo.yaml")
    assert_says_once(error, path, line, "name is 'gpu' but the file is named 'cpu'")


@pytest.mark.parametrize("lines", [[f"name: {'x' * 20_000}"], [f"{'x' * 1_000}{number}: 1" for number in range(20)]])
def test_mistakes_of_many_characters_are_not_repeated_whole(configs: Path, lines: list[str]):
    path = configs / "targets" / "cpu.yaml"
    path.write_text("\n".join([path.read_text().replace("name: cpu\n", ""), *lines, ""]))
    assert len(str(mistake_of(configs / "releases" / "demo.yaml"))) < 10_000


def test_relative_paths_of_a_deployment_are_relative_to_its_file(configs: Path):
    deployment = load_yaml(configs / "deployments" / "local.yaml", Deployment)
    assert deployment.store.uri == f"file://{configs.parent}/.pipeline/store"
    assert deployment.interpreter("control") == f"{configs.parent}/.envs/control/bin/python"


DEPLOYMENT = "deployments/local.yaml"


def store_as(configs: Path, text: str) -> Path:
    """The local deployment with another store; returns its file."""
    path = configs / DEPLOYMENT
    path.write_text(re.sub(r"(?m)^store: .*$", lambda _: f"store: {text}", path.read_text()))
    return path


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("$SOMEWHERE/store", "file:///mnt/models/store"),
        ("${SOMEWHERE}_2/store", "file:///mnt/models_2/store"),
        ("file://${SOMEWHERE}/store", "file://${SOMEWHERE}/store"),
        ("file:///srv/$NAME/store", "file:///srv/x/store"),
        ("/srv/$$NAME", "file:///srv/$NAME"),
        ("~/store", "file:///home/of/$me/store"),
        ("'~'", "file:///home/of/$me"),
    ],
)
def test_variables_and_the_home_directory_are_expanded_in_paths(
    configs: Path, monkeypatch: pytest.MonkeyPatch, written: str, expected: str
):
    monkeypatch.setenv("SOMEWHERE", "/mnt/models")
    monkeypatch.setenv("NAME", "x")
    monkeypatch.setenv("HOME", "/home/of/$me")
    path = store_as(configs, written)
    if written.startswith("file://$"):  # a URI's path begins with a slash
        with pytest.raises(ConfigError, match="not a store"):
            load_yaml(path, Deployment)
    else:
        assert load_yaml(path, Deployment).store.uri == expected


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("$UNSET_HERE/x", "the environment variable UNSET_HERE is not set here, or is empty (got '$UNSET_HERE/x')"),
        ("${UNSET_HERE}/x", "the environment variable UNSET_HERE is not set here"),
        ("file:///srv/$UNSET_HERE", "the environment variable UNSET_HERE is not set here"),
        ("$EMPTY_HERE/x", "the environment variable EMPTY_HERE is not set here, or is empty"),
        ("/srv/$", "write $$ for a dollar sign"),
        ("/srv/${A:-b}", "write $$ for a dollar sign"),
        ("~other/x", "only ~/ is expanded"),
        ("s3://$UNSET_HERE/x", "not a place in S3"),
    ],
)
def test_a_variable_that_is_not_set_is_refused_with_file_line_and_key(
    configs: Path, monkeypatch: pytest.MonkeyPatch, written: str, told: str
):
    monkeypatch.setenv("EMPTY_HERE", "")
    path = store_as(configs, written)
    line = path.read_text().splitlines().index(f"store: {written}") + 1
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, Deployment)
    assert_says_once(caught.value, path, line, "store", told)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("work_root", ("work_root: ", "work_root: $UNSET_HERE/")),
        ("state_root", ("state_root: ", "state_root: $UNSET_HERE/")),
        ("environments.control", ("control: ", "control: $UNSET_HERE/")),
    ],
)
def test_every_path_of_a_deployment_is_expanded_alike(configs: Path, key: str, change: tuple[str, str]):
    path = configs / DEPLOYMENT
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, Deployment)
    assert f"{key}: the environment variable UNSET_HERE is not set here" in str(caught.value)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "too_large"])
@pytest.mark.parametrize("place", ["releases/demo.yaml", "workloads/demo.jsonl", "calibration/demo.jsonl"])
def test_what_is_no_file_of_ours_is_refused_at_once(configs: Path, place: str, kind: str):
    path = configs / place
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as stream:
            stream.truncate(2**31)
    told = "(is no regular file|is a directory|lies outside|larger than 256 KiB|has 2147483648 bytes)"
    with pytest.raises(ConfigError, match=told):
        load_release(configs / "releases" / "demo.yaml")


def test_a_release_config_that_is_a_link_to_itself_is_refused(configs: Path):
    path = configs / "releases" / "loop.yaml"
    path.symlink_to("loop.yaml")
    assert "Too many levels of symbolic links" in str(mistake_of(path))


def test_a_data_file_with_an_endless_name_or_link_is_refused(configs: Path, edit):
    path = configs / "releases" / "demo.yaml"
    (configs / "workloads" / "loop.jsonl").symlink_to("loop.jsonl")
    edit("releases/demo.yaml", "workloads/demo.jsonl", "workloads/loop.jsonl")
    assert "workload.prompts: workloads/loop.jsonl" in str(mistake_of(path))
    edit("releases/demo.yaml", "workloads/loop.jsonl", f"workloads/{'x' * 300}.jsonl")
    assert "workload.prompts: workloads/xxx" in str(mistake_of(path))
