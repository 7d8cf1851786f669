"""The same requests in two windows, one beside the other: what one server did not answer cannot flatter it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.loadtest.records import Records


def same_requests(
    first: Records, second: Records, usable: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
) -> tuple[Records, Records]:
    """The requests of two windows of the same traffic that both can use, in the order of their numbers.

    Args:
        first: One window.
        second: The other.
        usable: Which requests of each to take; None for those with a whole, plausible answer.
    """
    of_first, of_second = usable or (first.answered, second.answered)
    first, second = first.where(of_first), second.where(of_second)
    _, at_first, at_second = np.intersect1d(first["number"], second["number"], return_indices=True)
    return _taken(first, at_first), _taken(second, at_second)


def _taken(records: Records, places: NDArray[np.intp]) -> Records:
    return Records({name: column[places] for name, column in records.columns.items()})
