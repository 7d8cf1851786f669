"""Plain Hugging Face serving: `generate` behind FastAPI, as tutorials show it; it speaks our model's JSON.

    PYTHONPATH=. .envs/model/bin/python benchmarks/plain_serving_app.py CHECKPOINT --port 9000 --batch 1

One worker calls `generate`. `--batch 1` answers one request at a time. With more, it takes what waits, up to so many,
pads it on the left and generates it together: static batching, the usual next step. Answers are streamed token by token
in either case, which is kind to it: the tutorial's server says nothing before it is done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer


class Request:
    """One request and the chunks of its answer."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.prompt, self.asked = str(body["prompt"]), int(body["max_tokens"])
        self.chunks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._tokens, self._shown = list[int](), ""
        self.input_tokens = 0

    def take(self, token: int, tokenizer: Any) -> None:
        """One more token; those beyond what was asked for are the batch's padding."""
        if len(self._tokens) == self.asked:
            return
        self._tokens.append(token)
        text = tokenizer.decode(self._tokens, skip_special_tokens=True)
        piece, self._shown = text[len(self._shown) :], text
        done = len(self._tokens) == self.asked
        chunk = {
            "model": "plain",
            "choices": [{"text": piece, "finish_reason": "length" if done else None}],
            "usage": {"prompt_tokens": self.input_tokens, "completion_tokens": len(self._tokens)},
        }
        self._loop.call_soon_threadsafe(self.chunks.put_nowait, chunk)

    async def pieces(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks as they come."""
        while True:
            yield (chunk := await self.chunks.get())
            if chunk["choices"][0]["finish_reason"]:
                return


class Streams(BaseStreamer):  # type: ignore[misc]
    """Hands every generated token to its request."""

    def __init__(self, requests: Sequence[Request], tokenizer: Any) -> None:
        self._requests, self._tokenizer, self._prompts_came = requests, tokenizer, False

    def put(self, value: torch.Tensor) -> None:
        """The prompts first, then one token of every request a step."""
        if self._prompts_came:
            for request, token in zip(self._requests, value.tolist(), strict=True):
                request.take(token, self._tokenizer)
        self._prompts_came = True

    def end(self) -> None:
        """Every request knows by itself when it is done."""


class Worker:
    """The thread that calls `generate`, on up to `batch` requests at a time."""

    def __init__(self, checkpoint: Path, batch: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self._batch = batch
        self.waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            requests = [self.waiting.get()]
            while len(requests) < self._batch and not self.waiting.empty():
                requests.append(self.waiting.get())
            self._generate(requests)

    @torch.inference_mode()
    def _generate(self, requests: Sequence[Request]) -> None:
        inputs = self._tokenizer([r.prompt for r in requests], return_tensors="pt", padding=True)
        for request, mask in zip(requests, inputs["attention_mask"], strict=True):
            request.input_tokens = int(mask.sum())
        self._model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=max(r.asked for r in requests),
            min_new_tokens=max(r.asked for r in requests),
            do_sample=False,
            pad_token_id=self._tokenizer.pad_token_id,
            streamer=Streams(requests, self._tokenizer),
        )


def make_app(worker: Worker) -> FastAPI:
    """The server."""
    app = FastAPI()

    @app.get("/health")
    def ready() -> dict[str, Any]:
        return {}

    @app.post("/v1/completions")
    async def stream(body: dict[str, Any]) -> StreamingResponse:
        worker.waiting.put(request := Request(body))

        async def lines() -> AsyncIterator[str]:
            async for chunk in request.pieces():
                yield f"data: {json.dumps(chunk)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    return app


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    uvicorn.run(
        make_app(Worker(options.checkpoint, options.batch)), host="127.0.0.1", port=options.port, log_level="warning"
    )


if __name__ == "__main__":
    main()
