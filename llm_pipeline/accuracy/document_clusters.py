"""Which documents of a task form clusters without a cluster field: those that share a passage.

Questions about one passage are lost together, when a candidate no longer understands it. Taken for independent, 40
passages of 50 questions pass a loss of the margin in up to half of all evaluations instead of 5 %. The rule is a
careful one, for what is clustered wrongly costs power:

* Only texts of at least `LONG` characters count, in any field, lists and nested fields included. They are compared
  without regard to case and spaces. Short fields (a subject, a label, a choice) are shared by chance.
* A text that more than half of the documents share is an instruction, and joins nothing.
* Documents that share any other text are one cluster; so are those that two such texts join.

A passage that is repeated with other words is not found: name a `cluster_field`.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LONG = 100
"""Characters of a text that documents do not share by chance; about twenty words."""

EACH_BY_ITSELF = "none"
"""The cluster field that says that every document stands for itself."""


def document_clusters(documents: Sequence[Mapping[str, Any]], field: str | None) -> list[str]:
    """The cluster of each document; an empty name is none.

    Args:
        documents: The task's, in their order.
        field: The field that names the cluster; `EACH_BY_ITSELF` for none; None to find shared passages.
    """
    if field == EACH_BY_ITSELF:
        return [""] * len(documents)
    if field is not None:
        named = (document.get(field) for document in documents)
        return ["" if name is None else str(name) for name in named]
    parent = list(range(len(documents)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for sharing in _shared(documents):
        for number in sharing[1:]:
            parent[root(number)] = root(sharing[0])
    sizes = defaultdict[int, int](int)
    for number in range(len(documents)):
        sizes[root(number)] += 1
    return [f"shared text {root(number)}" if sizes[root(number)] > 1 else "" for number in range(len(documents))]


def _shared(documents: Sequence[Mapping[str, Any]]) -> Iterator[list[int]]:
    """The documents of each long text that some share, and not most."""
    holders = defaultdict[tuple[str, bytes], list[int]](list)
    for number, document in enumerate(documents):
        for text in {own for field, value in document.items() for own in _texts(str(field), value)}:
            holders[text].append(number)
    return (numbers for numbers in holders.values() if 1 < len(numbers) <= len(documents) / 2)


def _texts(field: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """Field and digest of each long text in a value."""
    if isinstance(value, str):
        plain = " ".join(value.split()).casefold()
        if len(plain) >= LONG:
            yield field, hashlib.blake2b(plain.encode(errors="replace"), digest_size=16).digest()
    elif isinstance(value, Mapping):
        for name, own in value.items():
            yield from _texts(f"{field}.{name}", own)
    elif isinstance(value, list | tuple):
        for own in value:
            yield from _texts(field, own)
