from llm_pipeline.base.text_table import aligned, underlined


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_are_flush_right() -> None:
    rows = [("name", "n", "note"), ("a", "7", ""), ("longer", "1,234", "x")]
    assert aligned(rows, right={1}) == ["name        n  note", "a           7", "longer  1,234  x"]


def test_a_header_is_underlined_by_the_width_of_each_column() -> None:
    assert underlined(("a", "bc"), [("wide", "d")]) == ["a     bc", "----  --", "wide  d"]
    assert underlined(("a", "bc"), []) == ["a  bc", "-  --"]
