"""What a request's outputs hold."""

from enum import Enum


class RequestOutputKind(Enum):
    DELTA = 1
