import json

import pytest

from llm_pipeline.config.workload import Workload
from llm_pipeline.errors import ConfigError
from llm_pipeline.loadtest.workload import make_schedule, read_prompts

WORKLOAD = Workload(
    prompts="p.jsonl", rate_per_second=20, duration_seconds=10, output_tokens=(4, 16), warmup_requests=5, seed=1
)
PROMPTS = [f"prompt\u2028{number}" for number in range(50)]  # a line separator, but no end of a jsonl line


def test_a_schedule_is_named_by_what_it_sends():
    assert make_schedule(WORKLOAD, PROMPTS).digest == make_schedule(WORKLOAD, PROMPTS).digest
    other = WORKLOAD.model_copy(update={"seed": 2})
    assert make_schedule(other, PROMPTS).digest != make_schedule(WORKLOAD, PROMPTS).digest
    assert make_schedule(WORKLOAD, PROMPTS[:-1]).digest != make_schedule(WORKLOAD, PROMPTS).digest


def test_lengths_cover_the_whole_range_and_nothing_else():
    lengths = {scheduled.request.maximum_tokens for scheduled in make_schedule(WORKLOAD, PROMPTS).requests}
    assert lengths == set(range(4, 17))


def test_every_prompt_is_used_before_one_repeats():
    first = [scheduled.request.prompt for scheduled in make_schedule(WORKLOAD, PROMPTS).requests[:50]]
    assert sorted(first) == sorted(PROMPTS)
    assert first != PROMPTS, "in a drawn order"


def test_warm_up_requests_are_apart_from_the_window():
    schedule = make_schedule(WORKLOAD, PROMPTS)
    assert len(schedule.warmup) == 5
    without = make_schedule(WORKLOAD.model_copy(update={"warmup_requests": 0}), PROMPTS)
    assert without.digest == schedule.digest


def test_impossible_workloads_are_refused():
    with pytest.raises(ConfigError, match="no range"):
        make_schedule(WORKLOAD.model_copy(update={"output_tokens": (9, 3)}), PROMPTS)
    with pytest.raises(ConfigError, match="no request"):
        make_schedule(WORKLOAD.model_copy(update={"duration_seconds": 1e-6}), PROMPTS)


def test_prompts_come_from_the_one_jsonl_file(tmp_path):
    with pytest.raises(ConfigError, match="0 jsonl files"):
        read_prompts(tmp_path)
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in PROMPTS)
    )
    assert read_prompts(tmp_path) == PROMPTS
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n{"text": "y"}\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl:2"):
        read_prompts(tmp_path)
