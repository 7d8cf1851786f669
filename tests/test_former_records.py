"""Records of releases that a former version of this package wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))
from store_history import History

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.planning.planned_target import RecipePlan
from llm_pipeline.release.record import parse_record, read_record, record_name


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def _written(history: History, release_id: str) -> Any:
    document = history.store.read_document(record_name(release_id))
    assert document is not None
    return document.value


def test_settings_that_are_gone_are_left_out(history: History) -> None:
    release_id = history.resolve(1)
    now, former = _written(history, release_id), _written(history, release_id)
    former["release"]["policy"]["time_limit_hours"] = 24.0
    former["release"]["targets"][0]["limits"]["gone"] = 1
    former["deployment"]["retention"]["gone"] = {"days": 3}
    assert parse_record(former) == parse_record(now)
    assert former["release"]["policy"]["time_limit_hours"] == 24.0  # the document itself is untouched


def test_what_is_wrong_or_of_no_setting_is_still_refused(history: History) -> None:
    release_id = history.resolve(1)
    for place, key in ((("release", "policy"), "accuracy"), ((), "unheard_of")):
        value = _written(history, release_id)
        holder = value
        for part in place:
            holder = holder[part]
        holder[key] = "nonsense"
        with pytest.raises(ValidationError):
            parse_record(value)


def test_a_former_record_is_read_from_the_store(history: History) -> None:
    release_id = history.resolve(1)
    document = history.store.read_document(record_name(release_id))
    assert document is not None
    value = _written(history, release_id)
    value["release"]["policy"]["time_limit_hours"] = 24.0
    history.store.write_document(record_name(release_id), value, document.revision)
    assert read_record(history.store, release_id).release.name == "tiny"
    value["release"]["policy"]["accuracy"]["margin"] = "much"
    revised = history.store.read_document(record_name(release_id))
    assert revised is not None
    history.store.write_document(record_name(release_id), value, revised.revision)
    with pytest.raises(IntegrityError):
        read_record(history.store, release_id)


def test_a_former_plan_may_say_more_of_a_recipe() -> None:
    plan = RecipePlan(recipe="fp8", weights="fp8", legal=True)
    former = {**plan.model_dump(mode="json"), "prediction": {"tokens_per_second": 1.0}}
    assert RecipePlan.model_validate(former) == plan
