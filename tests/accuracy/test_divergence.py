from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from llm_pipeline.accuracy.divergence import REFERENCE_FILE, Reference, divergence_from, reference_of
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.quantization.readback import load_model

TEXTS = [(0, 5, 9, 30, 7), (0, 11, 200, 300, 100, 41, 8), (0, 4)]


@pytest.fixture
def model(source):
    return load_model(source, torch.float32)


@torch.inference_mode()
def whole_divergence(before, after):
    """Kullback-Leibler divergence over the whole vocabulary, and perplexity of the second model."""
    divergences, following = [], []
    for text in TEXTS:
        tokens = torch.tensor([text])
        p, q = (model(tokens[:, :-1]).logits[0].double().log_softmax(-1) for model in (before, after))
        divergences += (p.exp() * (p - q)).sum(-1).tolist()
        following += q.gather(-1, tokens[0, 1:, None])[:, 0].tolist()
    return np.mean(divergences), np.exp(-np.mean(following))


def shaken(source, amount):
    other = load_model(source, torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(amount * torch.randn(weight.shape, generator=generator))
    return other


def test_a_model_is_no_distance_from_itself(model, tmp_path):
    reference_of(model, TEXTS).write(tmp_path)
    distance = divergence_from(Reference.read(tmp_path), model)
    assert distance.kl_at_least == pytest.approx(0.0, abs=1e-6)
    assert (distance.top_token_agreement, distance.tokens) == (1.0, 11)


def test_the_divergence_is_a_tight_lower_bound_and_the_perplexity_is_exact(model, source):
    other, reference = shaken(source, 0.02), reference_of(model, TEXTS)
    distance = divergence_from(reference, other)
    exact, perplexity = whole_divergence(model, other)
    assert 0.5 * exact < distance.kl_at_least <= exact
    assert distance.perplexity == pytest.approx(perplexity, rel=1e-4)
    assert reference.perplexity == pytest.approx(whole_divergence(model, model)[1], rel=1e-4)
    assert divergence_from(reference, shaken(source, 0.3)).top_token_agreement < 1.0


def test_a_broken_candidate_has_no_distance_and_a_broken_baseline_no_reference(model, source):
    reference, broken = reference_of(model, TEXTS), shaken(source, float("nan"))
    assert divergence_from(reference, broken).kl_at_least is None
    with pytest.raises(IntegrityError, match="NaN or infinite"):
        reference_of(broken, TEXTS)


def test_an_evaluation_may_have_no_reference_but_not_a_damaged_one(tmp_path):
    assert Reference.read(tmp_path) is None
    (tmp_path / REFERENCE_FILE).write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(IntegrityError, match="unreadable"):
        Reference.read(tmp_path)
