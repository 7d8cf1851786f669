"""The garbage collector while a program starts, and while much is made that stays.

What is imported lives as long as the process. To look through it for garbage, again and again and once more at the
end, takes a quarter of the processor time of a stage that finds its result in the store.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL = gc.get_threshold()
_STARTING, _SPARING = (1_000_000, 50, 50), (1_000_000, 100, 50)  # two, so that the end of one leaves the other


def spare_imports() -> None:
    """Collect hardly anything until `imports_done`, and nothing at the end; for the first line of a program."""
    gc.set_threshold(*_STARTING)
    atexit.register(gc.freeze)


def imports_done() -> None:
    """Collect what is made from now on as usual: a stage's tensors must not wait. Does nothing without a start."""
    if gc.get_threshold() == _STARTING:
        gc.freeze()
        gc.set_threshold(*_USUAL)


def spare_tool() -> None:
    """Leave out of all collections what is there: a tool of a million objects, imported a moment ago.

    One look through torch, modelopt and Transformers takes 0.3 s, and an export asks for one.
    """
    gc.freeze()


@contextmanager
def sparing() -> Iterator[None]:
    """Collect hardly anything in a block or function that makes many objects, most of which stay."""
    imports_done()
    usual = gc.get_threshold()
    gc.set_threshold(*_SPARING)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
