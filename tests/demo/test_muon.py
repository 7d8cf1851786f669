from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from llm_pipeline.demo.train import Muon, orthogonalized

SETTINGS = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.01}


@pytest.mark.parametrize("shape", [(64, 128), (384, 128)])  # a random square has singular values of almost nothing
def test_singular_values_are_brought_near_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalized(matrix))
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(64, 128), (128, 128), (384, 128)])
def test_steps_are_those_of_torch_but_for_its_rounding(shape):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = Muon([ours], **SETTINGS), torch.optim.Muon([theirs], **SETTINGS)
    for _ in range(4):
        gradient = torch.randn(shape, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved, difference = (theirs - start).norm(), (ours - theirs).norm()
    assert difference < 0.02 * moved


def test_a_matrix_without_a_gradient_stays():
    matrix = torch.nn.Parameter(torch.ones(2, 3))
    Muon([matrix], **SETTINGS).step()
    assert torch.equal(matrix, torch.ones(2, 3))
