"""Epochs of a place: whoever acts on its router and slots does so with a number above all that were seen before.

Two that look at the same moment see the same, one of them frozen perhaps since then. So an epoch also holds the number
of its holder's lease, which the store gives once: no two controllers ever share an epoch, whatever they put on trial.
Whoever takes one reads what there is, and only then makes sure that it still has the lease: who has it next saw at
least as much, and goes above. That is why routes need to carry nothing else to tell one controller from another.
"""

from __future__ import annotations

_LEASES = 2**20
"""Leases with this many between them have the same number in an epoch."""


def epoch_above(lease: int, *seen: int) -> int:
    """An epoch for the holder of a lease, above those that it found at the router, in the record and at the slots.

    Args:
        lease: The lease's own epoch; zero for one who acts without, because the store takes nothing.
        seen: Epochs that were found.
    """
    return (max(seen, default=0) // _LEASES + 1) * _LEASES + lease % _LEASES
