"""Which documents of a task share a passage."""

from __future__ import annotations

from typing import Any

from llm_pipeline.accuracy.document_clusters import document_clusters

PASSAGES = [
    f"Passage {number}. " + "What happened next was told by nobody for a long time. " * 3 for number in range(4)
]


def documents(**shared: Any) -> list[dict[str, Any]]:
    return [{"passage": PASSAGES[number // 5], "question": f"What is {number}?", **shared} for number in range(20)]


def parts(clusters: list[str]) -> list[list[int]]:
    return [[number for number, own in enumerate(clusters) if own == name] for name in dict.fromkeys(clusters)]


def test_documents_of_one_passage_are_one_cluster() -> None:
    assert parts(document_clusters(documents(), None)) == [list(range(start, start + 5)) for start in (0, 5, 10, 15)]


def test_case_and_spaces_make_no_other_passage() -> None:
    some = documents()
    some[1]["passage"] = some[1]["passage"].upper().replace(" ", "\n  ")
    assert document_clusters(some, None)[1] == document_clusters(some, None)[0] != ""


def test_an_instruction_that_most_documents_share_joins_nothing() -> None:
    some = documents(instruction="Answer the question with one of the options, and explain your answer at length. " * 2)
    assert len(parts(document_clusters(some, None))) == 4
    alone = [{"instruction": some[0]["instruction"], "question": f"{number}?"} for number in range(20)]
    assert document_clusters(alone, None) == [""] * 20


def test_short_fields_join_nothing() -> None:
    assert document_clusters([{"subject": "law", "choices": ["yes", "no"]}] * 3 + [{}] * 9, None) == [""] * 12


def test_passages_in_lists_and_nested_fields_are_found() -> None:
    some = [{"context": {"sentences": [["Short.", PASSAGES[number // 5]]]}, "id": number} for number in range(20)]
    assert len(parts(document_clusters(some, None))) == 4


def test_what_is_told_is_not_guessed() -> None:
    some = documents()
    assert document_clusters(some, "question") == [own["question"] for own in some]
    assert document_clusters(some, "none") == [""] * 20
    assert document_clusters(some, "absent") == [""] * 20


def test_documents_whose_cluster_field_is_empty_stand_for_themselves() -> None:
    """JSON Lines of which only some have the field give None for the others."""
    some = [{"passage": "a"}, {"passage": "a"}, {"passage": None}, {"passage": None}, {"passage": 0}, {"passage": ""}]
    assert document_clusters(some, "passage") == ["a", "a", "", "", "0", ""]
