"""Muon, the optimizer of the layers' matrices: momentum whose singular values are all brought near one.

As `torch.optim.Muon` does it (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/), but in FP32: torch's
multiplies in BF16, which takes four times as long on a CPU that has to imitate it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # mypy runs where there is no torch
    """Steps by orthogonalized Nesterov momentum, with weight decay.

    Args:
        matrices: Parameters of two dimensions.
        lr: Length of a step; a tall matrix takes one that is longer by the root of its ratio of sides.
        momentum: Share of the momentum that a step keeps.
        weight_decay: Share of a matrix that a step at a rate of one takes away.
    """

    def __init__(
        self, matrices: Iterable[torch.nn.Parameter], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:  # noqa: ARG002 - as in torch
        """Move every matrix that has a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for matrix in group["params"]:
                    if (gradient := matrix.grad) is not None:
                        self._move(matrix, gradient, group["lr"], group["momentum"], group["weight_decay"])

    def _move(
        self, matrix: torch.nn.Parameter, gradient: torch.Tensor, rate: float, momentum: float, decay: float
    ) -> None:
        kept = self.state[matrix].setdefault("momentum", torch.zeros_like(gradient))
        kept.lerp_(gradient, 1 - momentum)
        direction = orthogonalized(gradient.lerp(kept, momentum))
        rows, columns = matrix.shape
        matrix.mul_(1 - rate * decay)
        matrix.add_(direction, alpha=-rate * max(1.0, rows / columns) ** 0.5)


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values between about 0.7 and 1.2, by Newton and Schulz's iteration."""
    first, second, third = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    wide = wide / wide.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=second, alpha=third), wide, beta=first)
    return wide.T if tall else wide
