"""The served lane, against a real Triton server whose model repeats the prompt's words."""

import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from llm_pipeline.accuracy.lm_eval_served import ServedModel, served_questions
from llm_pipeline.base.errors import Transient, Unsupported
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.release import Evaluation
from llm_pipeline.serving.triton_server import start_server, stop_server

sys.path.insert(0, str(Path(__file__).parents[1]))

from openai_server import OpenAiDouble

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TRITON_HOME, PYTHON = ROOT / ".envs" / "triton", ROOT / ".envs" / "model" / "bin" / "python"

TASK = """
task: repeat
dataset_path: json
dataset_kwargs: {data_files: {test: repeat.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: %s, do_sample: %s, max_gen_toks: 3}
filter_list:
  - name: stripped
    filter: [{function: regex, regex_pattern: "^\\\\s*(.*?)\\\\s*$"}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    if not TRITON_HOME.exists() or not PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    root = tmp_path_factory.mktemp("served")
    repository = shutil.copytree(ROOT / "tests" / "serving" / "toy_repository", root / "repository")
    ports = ServerPorts(http=18537, grpc=18538, metrics=18539)
    state = root / "slot"
    server = start_server(repository, ports, triton_home=TRITON_HOME, python=PYTHON, state=state)
    yield Endpoint(url=server.http_url)
    stop_server(state)


def tasks(directory: Path, *, until: str = '["\\n"]', sample: str = "false") -> Path:
    (directory / "repeat.yaml").write_text(TASK % (until, sample))
    rows = [{"prompt": f"x{n} y{n}", "answer": f"x{n} y{n} x{n}" if n % 4 else "wrong"} for n in range(40)]
    (directory / "repeat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def evaluation(**changes) -> Evaluation:
    return Evaluation(**{"tasks": ("repeat",), "served_tasks": ("repeat",), **changes})


def ask(endpoint, evaluation, directory, count=None):
    questions = served_questions(directory, evaluation)
    order = [("repeat", number) for number in range(len(questions.clusters["repeat"]))]
    return questions.ask(ServedModel(endpoint), order[:count])


def test_every_item_is_scored_through_the_server(endpoint, tmp_path):
    items = ask(endpoint, evaluation(), tasks(tmp_path))
    assert [item.score for item in items] == [float(n % 4 > 0) for n in range(40)]
    assert {item.prompt for item in items} == {f"x{n} y{n}" for n in range(40)}
    assert items[1].completion == " x1 y1 x1"


def test_a_server_with_openais_api_is_asked_the_same(tmp_path):
    with OpenAiDouble() as server:
        items = ask(Endpoint(url=server.url, openai_model="llm"), evaluation(), tasks(tmp_path), count=8)
        asked = {one["prompt"]: one for one in server.seen}
    assert {item.prompt for item in items} == set(asked)
    assert {len(item.completion.split()) for item in items} == {3}
    wanted = {"model": "llm", "max_tokens": 3, "temperature": 0.0, "stream": False}
    assert all(wanted.items() <= one.items() and "\n" in one["stop"] for one in asked.values())


@pytest.mark.parametrize("fault", ["no_usage", "other_model", "filtered"])
def test_an_answer_of_openais_api_that_is_wrong_is_no_score(tmp_path, fault, monkeypatch):
    monkeypatch.setattr("llm_pipeline.accuracy.lm_eval_served._ATTEMPTS", 1)
    with OpenAiDouble(fault=fault) as server, pytest.raises(Transient, match="no usable answer"):
        ask(Endpoint(url=server.url, openai_model="llm"), evaluation(), tasks(tmp_path), count=1)


def test_the_limit_of_the_evaluation_holds(endpoint, tmp_path):
    assert len(ask(endpoint, evaluation(limit=7), tasks(tmp_path))) == 7


@pytest.mark.parametrize("until", [["y1"], [*"abcdefgh", "y1"]], ids=["one", "more than a request takes"])
def test_answers_end_before_a_stop_word(endpoint, tmp_path, until):
    items = ask(endpoint, evaluation(limit=2), tasks(tmp_path, until=json.dumps(until)))
    assert items[1].completion.strip() == "x1"
    assert items[0].completion == " x0 y0 x0"


def test_a_sampling_task_is_refused(endpoint, tmp_path):
    with pytest.raises(Unsupported, match="do_sample: false"):
        ask(endpoint, evaluation(), tasks(tmp_path, sample="true, temperature: 0.7"))


def test_log_likelihoods_are_refused(endpoint):
    with pytest.raises(Unsupported, match="log-likelihoods"):
        ServedModel(endpoint).loglikelihood([])


def test_a_task_of_log_likelihoods_is_refused_before_anything_is_asked():
    demo = ROOT / "configs" / "tasks" / "demo"
    with pytest.raises(Unsupported, match="log-likelihoods") as refused:
        served_questions(demo, Evaluation(tasks=("demo_choice",), served_tasks=("demo_choice",), limit=2))
    assert refused.value.where == "task demo_choice"


def test_a_server_that_does_not_answer_is_worth_another_try(tmp_path):
    with pytest.raises(Transient, match="3 attempts"):
        ask(Endpoint(url="http://127.0.0.1:9"), evaluation(), tasks(tmp_path), 1)
