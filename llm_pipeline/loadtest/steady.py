"""Where a warm-up ends: the first part of a series is cut so that the rest varies least around its mean.

MSER-5, with White's (1997) batches of five: K. Hoad, S. Robinson, R. Davies, "Automating warm-up length estimation",
Journal of the Operational Research Society 61 (2010). With fewer than a hundred values it cuts far too much, and says
nothing here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FEWEST = 100
_BATCH = 5


def steady_from(values: NDArray[np.float64]) -> int | None:
    """The place of the first value of the steady part; None when there is none yet, or too few values to tell.

    Args:
        values: A measure of each request, in the order in which they were sent.
    """
    if len(values) < FEWEST:
        return None
    batches = values[: len(values) // _BATCH * _BATCH].reshape(-1, _BATCH).mean(axis=1)
    count = len(batches)
    left = np.arange(count, 0, -1)
    sums, squares = np.cumsum(batches[::-1])[::-1], np.cumsum((batches**2)[::-1])[::-1]
    errors = (squares - sums**2 / left) / left**2
    most = count // 2  # of the second half too little is left to vary: its minimum is chance
    cut = int(np.argmin(errors[: most + 1]))
    return cut * _BATCH if cut < most else None
