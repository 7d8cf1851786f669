"""Tells people by a line in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from llm_pipeline.base.adapters import Adapter
from llm_pipeline.config.model import AbsolutePath, Word
from llm_pipeline.config.notifications import ChannelModel
from llm_pipeline.notifications.channel import ConnectionReader
from llm_pipeline.notifications.message import Message


class AcmePager(ChannelModel):
    kind: Literal["acme_pager"]
    file: AbsolutePath
    on_call: Word = ""

    def problems(self) -> Iterator[str]:
        if self.on_call == "nobody":
            yield "nobody is on call"

    def warnings(self) -> Iterator[str]:
        if not self.on_call:
            yield "who is on call is not said"


class Pager:
    def __init__(self, settings: AcmePager, _: ConnectionReader) -> None:
        self._file = Path(settings.file)

    def send(self, message: Message) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{message.title}\n")


PAGER = Adapter(config=AcmePager, open=Pager, probe=lambda settings: f"{settings.on_call or 'somebody'} has the pager")
