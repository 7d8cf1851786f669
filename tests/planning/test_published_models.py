"""The facts that are read from published configurations, beside the figures that others give for the models."""

from __future__ import annotations

import pytest
from published import NAMES, facts_of, figures_of


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_bytes_are_those_that_were_published(name: str):
    facts, figures = facts_of(name), figures_of(name)
    if "parameters" in figures:
        assert facts.parameters == figures["parameters"]
    else:
        assert facts.parameters / 1e9 == pytest.approx(figures["parameters_billions"], rel=0.001)
    if "total_size" in figures:
        assert facts.stored_bytes == figures["total_size"]


@pytest.mark.parametrize("name", NAMES)
def test_context_and_cache_are_those_of_the_architecture(name: str):
    facts, figures = facts_of(name), figures_of(name)
    assert facts.context_length == figures["context_length"]
    assert 2 * facts.kv_elements_per_token == figures["kv_bytes_per_token"]


@pytest.mark.parametrize("name", [name for name in NAMES if "active_billions" in figures_of(name)])
def test_active_parameters_are_those_that_were_published(name: str):
    """Some count the embedding table and the head among them, some do not."""
    facts = facts_of(name)
    published, outside = figures_of(name)["active_billions"], facts.embedding_parameters + facts.head_parameters
    assert (facts.active_parameters - outside) / 1e9 * 0.97 <= published <= facts.active_parameters / 1e9 * 1.02


def test_sliding_windows_are_those_of_the_architecture():
    def windows(name: str) -> dict[int | None, int]:
        return {cache.window: len(cache.layers) for cache in facts_of(name).caches}

    assert windows("Gemma-2-9B") == {4096: 21, None: 21}
    assert windows("Gemma-3-1B") == {512: 22, None: 4}
    assert windows("gpt-oss-20b") == {128: 12, None: 12}
    assert windows("Mistral-7B-v0.1") == {4096: 32}
    assert windows("Mistral-7B-v0.3") == {None: 32}
    assert windows("Phi-3-mini-4k") == {2047: 32}
    assert windows("Qwen2.5-7B") == {None: 28}


def test_experts_are_counted_by_layer():
    assert facts_of("DeepSeek-V3").experts == 256
    assert facts_of("Mixtral-8x7B").experts == 8
    assert not facts_of("Llama-3.1-8B").is_mixture
    assert facts_of("Llama-3.1-8B").active_parameters == facts_of("Llama-3.1-8B").parameters
