from __future__ import annotations

import pytest

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.hub.model_card import license_change, require_license, stated_license


def model(license_name: str | None = None, gated: str | None = None) -> PinnedModel:
    return PinnedModel(id="demo/tiny", commit="0" * 40, files=(), license=license_name, gated=gated)


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (None, model("mit", "manual"), ""),
        (model("apache-2.0"), model("llama3.1"), "apache-2.0 -> llama3.1"),
        (model("apache-2.0"), model(), "apache-2.0 -> not stated"),
        (model("mit", "auto"), model("mit"), "gated: auto -> no"),
        (model("mit"), model("other", "auto"), "mit -> other; gated: no -> auto"),
    ],
)
def test_what_changed_in_licence_and_gating_is_one_line(
    before: PinnedModel | None, now: PinnedModel, change: str
) -> None:
    assert license_change(before, now) == change


def test_of_several_licences_each_must_be_allowed() -> None:
    require_license(model("apache-2.0, mit"), ("MIT", "apache-2.0"))
    with pytest.raises(Unsupported, match=r"apache-2\.0, mit"):
        require_license(model("apache-2.0, mit"), ("mit",))


@pytest.mark.parametrize(("license_name", "allowed"), [("llama3.1", ("mit",)), (None, ("mit",)), ("mit", ())])
def test_another_licence_is_refused_with_what_it_is(license_name: str | None, allowed: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported, match=license_name or "not stated") as caught:
        require_license(model(license_name), allowed)
    assert "model.licenses" in caught.value.hint


@pytest.mark.parametrize(
    ("card", "tags", "stated"),
    [
        ({"license": "mit"}, ["license:apache-2.0"], "mit"),
        ({"license": "other", "license_name": "tongyi-qianwen"}, [], "tongyi-qianwen"),
        ({"license": "other"}, [], "other"),
        ({"license": ["apache-2.0"]}, [], "apache-2.0"),
        ({"license": ["apache-2.0", "mit"]}, ["license:mit"], "apache-2.0, mit"),
        ({}, ["safetensors", "license:apache-2.0"], "apache-2.0"),
        ({}, [], None),
    ],
)
def test_the_licence_is_named_as_the_hub_names_it(card: dict[str, object], tags: list[str], stated: str | None) -> None:
    assert stated_license(card, tags) == stated
