"""A process that holds the memory of a GPU, all but what is to be left, and watches how much of that is used."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

_LOOK_SECONDS = 0.02
_PIECE_BYTES = 64 * 2**20


@dataclass
class Left:
    """What the holder left of a GPU.

    Attributes:
        free: Bytes that were free at the beginning.
        most_used: Of them, in use at a time; known once the holder has ended.
    """

    free: int
    most_used: int = 0


@contextlib.contextmanager
def held(gpu: int, leave: int) -> Iterator[Left]:
    """Leave about so many bytes of a GPU free while the block runs; all of it, when less is free."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    holder = spawn.Process(target=_hold, args=(gpu, leave, theirs), daemon=True)
    holder.start()
    theirs.close()
    left = Left(ours.recv())
    try:
        yield left
    finally:
        ours.send(None)
        left.most_used = left.free - ours.recv()
        holder.join()


def _hold(gpu: int, leave: int, caller: Connection) -> None:
    torch.cuda.set_device(gpu)
    free, _ = torch.cuda.mem_get_info(gpu)
    blocks = _fill(max(0, free - leave))
    free = least = torch.cuda.mem_get_info(gpu)[0]
    caller.send(free)
    while not caller.poll(_LOOK_SECONDS):
        least = min(least, torch.cuda.mem_get_info(gpu)[0])
    caller.send(least)
    blocks.clear()


def _fill(wanted: int) -> list[torch.Tensor]:
    """Take so many bytes, in pieces: not all that is free can be had as one."""
    blocks = []
    for size in (_PIECE_BYTES,) * (wanted // _PIECE_BYTES) + (wanted % _PIECE_BYTES,):
        try:
            blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            break
    return blocks
