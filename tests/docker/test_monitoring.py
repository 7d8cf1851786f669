"""Alert rules and dashboards ask only for what Triton, our served models, Envoy, Airflow and releases export.

`exports/` holds the series of a Triton 2.51 with a release of the CPU engine, of the Envoy before it, and of Airflow
3.3 by OTLP, as they were recorded in a run of the demo: names and labels, no values. Those of releases are checked in
`test_release_metrics.py`, those of Airflow in `tests/airflow/test_real_airflow.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from llm_pipeline.config.deployment import SEVERITIES

MONITORING = Path(__file__).parents[2] / "docker" / "monitoring"
EXPORTS = Path(__file__).parent / "exports"
FROM_PROMETHEUS = {"instance", "job", "le"}
SERIES = re.compile(r"^(?P<name>\w+)(\{(?P<labels>.*)\})?$")
METRIC = re.compile(r"\b((?:airflow|envoy|nv|llm)_\w+)(?:\{([^}]*)\})?(?=[\s\[)>]|$)")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|ignoring) \(([^)]*)\)")


def exported() -> dict[str, list[dict[str, str]]]:
    """The labels of each exported series, by its name."""
    found: dict[str, list[dict[str, str]]] = {}
    for path in EXPORTS.glob("*.txt"):
        for line in path.read_text().splitlines():
            series = SERIES.match(line)
            labels = {name: value for name, _, value in MATCHER.findall(series["labels"] or "")}
            found.setdefault(series["name"], []).append(labels)
    return found


def rules() -> list[dict]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboards() -> list[dict]:
    return [json.loads(path.read_text()) for path in MONITORING.glob("*.json")]


def queries() -> list[tuple[str, str]]:
    alerts = [(rule["alert"], rule["expr"]) for rule in rules()]
    panels = [panel for board in dashboards() for panel in board["panels"]]
    return alerts + [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]


def problems(expression: str) -> list[str]:
    """What a query asks for that nothing exports."""
    known, found, labels = exported(), [], set(FROM_PROMETHEUS)
    metrics = METRIC.findall(GROUPING.sub("", expression))
    for name, matchers in metrics:
        series, wanted = known.get(name, []), MATCHER.findall(matchers)
        labels |= {label for one in series for label in one}
        if not series:
            found.append(f"nothing exports {name}")
        elif not any(all(matches(one.get(label), *how) for label, *how in wanted) for one in series):
            found.append(f"no series of {name} has {matchers}")
    grouped = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
    return found + [f"no label {label}" for label in sorted(grouped - labels)] + ([] if metrics else ["no metric"])


def matches(value: str | None, operator: str, wanted: str) -> bool:
    if value is None:
        return False
    same = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
    return same is not operator.startswith("!")


@pytest.mark.parametrize(("title", "expression"), queries())
def test_a_query_asks_for_what_is_exported(title: str, expression: str) -> None:
    assert problems(expression) == [], title


def test_rules_ask_everybody_who_exports_something_to_watch() -> None:
    asked = " ".join(rule["expr"] for rule in rules())
    watched = ("airflow_scheduler", "airflow_triggerer", "GuardOperator", "envoy_", "llm_", "nv_")
    assert not [name for name in watched if name not in asked]


def test_an_alert_says_what_to_do_and_how_much_it_matters() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in SEVERITIES[1:]
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"].endswith(".")


def test_dashboards_have_ids_of_their_own_and_panels_that_do_not_overlap() -> None:
    boards = dashboards()
    assert len({board["uid"] for board in boards}) == len(boards) == 2
    for board in boards:
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        assert len(set(places)) == len(places)
