"""What a request's outputs hold."""

from dataclasses import dataclass
from enum import Enum


class RequestOutputKind(Enum):
    DELTA = 1


@dataclass
class StructuredOutputsParams:
    json: str
