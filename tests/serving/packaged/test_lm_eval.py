"""A real engine, served by a whole slot, as lm-eval scores it: ours beside its own classes, item by item."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from served import cpu_target

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.model_rules import ChatFormat, SamplingDefaults

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

HERE = Path(__file__).parent
CHAT = ChatFormat(
    template=(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    special_tokens={"bos_token": "<s>"},
)
PENALTY = SamplingDefaults(repetition_penalty=2.0)
"""For requests that do not say otherwise, which no evaluation is."""


@pytest.fixture(scope="module")
def compared(tiny_engine, package, start, model_python, tmp_path_factory):
    """What was asked, what came of it and its score, by arm and item."""
    directory = tmp_path_factory.mktemp("lm-eval")
    checkpoint = Path(shutil.copytree(tiny_engine.parent / "checkpoint", directory / "checkpoint"))
    (checkpoint / "chat_template.jinja").write_text(CHAT.template)
    engine = Path(shutil.copytree(tiny_engine, directory / "engine"))
    description = EngineDescription.read(engine)
    rules = description.rules.model_copy(update={"chat": CHAT, "sampling": PENALTY})
    description.model_copy(update={"rules": rules}).write(engine)
    server = start(package(engine, cpu_target(8, 64, 128), model="tiny"))
    command = [str(model_python), "-W", "ignore", str(HERE / "lm_eval_beside.py"), str(directory)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, server.endpoint.url, "tiny"], check=True, env=environment, stdout=sys.stderr, timeout=600)
    return json.loads((directory / "compared.json").read_text())


def test_the_served_engine_scores_what_its_checkpoint_scores(compared):
    """The weights are random and large: one token more or less in a prompt changes the whole answer."""
    assert len(compared["served"]) == 60
    assert readable(compared["served"]) == readable(compared["checkpoint"])
    texts = {answer for prompt, answer, _ in compared["served"].values() if prompt}
    assert len(texts) > 15


def test_lm_evals_own_classes_come_to_the_same_answers_and_likelihoods(compared):
    hf = readable(compared["hf"])
    for arm in ("local-completions", "local-chat-completions"):
        for place, (prompt, answers, score) in readable(compared[arm]).items():
            expected = hf[place]
            if arm == "local-completions":
                assert prompt == expected[0]
            if place.startswith("talk"):
                assert answers == expected[1]
            else:
                for ours, theirs in zip(answers, expected[1], strict=True):
                    assert ours[0][0] == pytest.approx(theirs[0][0], abs=1e-3)
                    assert ours[0][1] == theirs[0][1]
            assert score == expected[2] == compared["served"][place][2]


def readable(items):
    """Tokens are bytes here, and runtimes show broken characters as one or as several."""
    return json.loads(re.sub(r"(\\ufffd)+", "?", json.dumps(items)))
