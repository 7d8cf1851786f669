"""The table of formats against the recorded tables that it is made from, cell by cell."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from llm_pipeline.catalog.tables import families, find_gpu, gpus
from llm_pipeline.cli import main
from llm_pipeline.planning.matrix import Backend, Cell, Selection, format_matrix, judge_cells

A100, L40S, H100, H200 = "A100-SXM4-80GB", "L40S", "H100-SXM5-80GB", "H200-SXM-141GB"
B200, GB200, RTX = "B200-SXM-180GB", "GB200", "RTX-PRO-6000-Blackwell-Server"

ROWS = {
    "none": "bf16",
    "fp8": "fp8",
    "fp8_per_channel_token": "fp8_rowwise",
    "fp8_block": "fp8_block",
    "int8_smoothquant": "int8_sq",
    "int8_weight_only": "int8_wo",
    "int4_blockwise": "int4_wo",
    "int4_awq": "int4_awq",
    "w4a8_awq": "w4a8_awq",
    "nvfp4": "nvfp4",
    "nvfp4_awq": "nvfp4",
    "mxfp4": "mxfp4",
    "kv_cache_fp8": "kv_fp8",
    "kv_cache_int8": "kv_int8",
    "kv_cache_nvfp4": "kv_nvfp4",
}
"""Row of the recorded matrix for each format."""

EXPORTED_AS = {"fp8_block": "fp8_pb_wo", "nvfp4_awq": "NVFP4_AWQ", "mxfp4": "mxfp4"}
"""modelopt's names that are not in every reader's list."""

COLUMNS: dict[str, tuple[Backend, str]] = {
    "engine_1_2": ("tensorrt_llm_engine", "1.2.1"),
    "pytorch_1_2": ("tensorrt_llm_llmapi", "1.2.1"),
    "pytorch_main": ("tensorrt_llm_llmapi", "1.3.0rc22"),
}
WORST = ("yes", "partial", "unknown", "no")
VERDICTS = {"yes": "legal", "partial": "partial", "unknown": "unknown", "no": "illegal"}


@cache
def recorded(package: str, name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(files(package).joinpath("data", f"{name}.json").read_text(encoding="utf-8"))
    return table


def expected(sm: str, name: str, column: str) -> str:
    """The worst of: kernels of that generation, the checkpoint's reader, the exporter for engines."""
    unknown = {"value": "unknown"}
    said = [
        recorded("llm_pipeline.catalog", "quant_support_matrix")["matrix"][sm.replace("103", "100")].get(ROWS[name], {})
    ]
    values = [said[0].get(column, unknown)["value"]]
    if name in EXPORTED_AS:
        reader = recorded("llm_pipeline.catalog", "checkpoint_reader")["others"][EXPORTED_AS[name]]
        values.append(reader[column]["value"])
    exporter = recorded("llm_pipeline.quantization", "tensorrt_llm_checkpoint")
    known = ("none", *exporter["algorithms"], *(f"kv_cache_{kv}" for kv in exporter["kv_caches"]))
    if column == "engine_1_2" and name not in known:
        values.append("no")
    return VERDICTS[max(values, key=WORST.index)]


@pytest.mark.parametrize("accelerator", sorted(gpus()))
@pytest.mark.parametrize("column", COLUMNS)
def test_every_cell_is_what_the_recorded_tables_say(column: str, accelerator: str):
    engine, version = COLUMNS[column]
    cells = judge_cells(Selection(accelerators=(accelerator,), versions=(version,), engines=(engine,)))
    sm = find_gpu(accelerator).sm
    assert {cell.format: cell.verdict for cell in cells} == {name: expected(sm, name, column) for name in ROWS}


def test_every_cell_that_is_not_legal_says_why_and_every_illegal_one_what_to_do():
    for cell in judge_cells(Selection()):
        assert bool(cell.why) is (cell.verdict != "legal"), cell
        assert bool(cell.nearest) is (cell.verdict == "illegal"), cell


@pytest.mark.parametrize("family", families())
def test_a_family_makes_a_legal_cell_unknown_where_nvidia_does_not_list_it_and_changes_no_other(family: str):
    columns = {engine: column for column, (engine, version) in COLUMNS.items() if version == "1.2.1"}
    table = next(row for row in recorded("llm_pipeline.catalog", "model_support")["families"] if row["name"] == family)
    selection = Selection(accelerators=(A100, H200, B200), versions=("1.2.1",))
    for plain, cell in zip(judge_cells(selection), judge_cells(selection._replace(models=(family,))), strict=True):
        listed = table["engine" if columns[cell.engine] == "engine_1_2" else "pytorch"] + table["tested"]
        is_listed = cell.format == "none" or ROWS[cell.format] in listed
        assert cell.verdict == ("unknown" if plain.verdict == "legal" and not is_listed else plain.verdict), cell


def test_the_text_has_a_column_a_generation_and_each_reason_once_with_all_of_them():
    text = format_matrix(judge_cells(Selection(versions=("1.2.1",), engines=("tensorrt_llm_llmapi",))))
    lines = text.splitlines()
    assert lines[1].split() == ["format", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"]
    row = next(line for line in lines if line.startswith("  nvfp4 "))
    assert row.split() == ["nvfp4", "no", "no", "no", "no", "yes", "yes", "yes"]
    why = "TensorRT-LLM 1.x (features/quantization.md hardware table)"
    reason = f"  - int4_awq does not run on sm100, sm103, sm120 with {why}"
    assert lines.count(reason) == 1
    assert "  sm100: B200-SXM-180GB, GB200" in lines


def test_versions_of_which_the_same_is_said_share_a_block():
    text = format_matrix(judge_cells(Selection(accelerators=(H100,))))
    heads = [line for line in text.splitlines() if line.startswith("tensorrt_llm_")]
    assert heads == [
        "tensorrt_llm_llmapi 1.3.0rc22",
        "tensorrt_llm_llmapi 1.2.1, 1.2.0",
        "tensorrt_llm_llmapi 1.1.0, 1.0.3.2510, 1.0.0",
        "tensorrt_llm_engine 1.3.0rc22",
        "tensorrt_llm_engine 1.2.1, 1.2.0, 1.1.0, 1.0.3.2510, 1.0.0",
    ]
    assert "as the first to read its checkpoints, this is 1.1.0, 1.0.3.2510, 1.0.0" in text


def test_the_command_prints_the_cells_that_are_asked_for(capsys: pytest.CaptureFixture[str]):
    asked = ["--gpu", L40S, "--gpu", B200, "--version", "1.2.1", "--engine", "tensorrt_llm_llmapi"]
    assert main(["formats", *asked, "--model", "Qwen/Qwen2.5-7B-Instruct", "--json"]) == 0
    cells = [Cell.model_validate(cell) for cell in json.loads(capsys.readouterr().out)]
    assert len(cells) == 2 * len(ROWS)
    assert {cell.accelerator for cell in cells} == {L40S, B200}
    awq = next(cell for cell in cells if (cell.accelerator, cell.format) == (B200, "int4_awq"))
    assert (awq.verdict, awq.nearest) == ("illegal", "weights: nvfp4")
    assert main(["formats", *asked]) == 0
    assert capsys.readouterr().out.startswith("tensorrt_llm_llmapi 1.2.1\n  format")
