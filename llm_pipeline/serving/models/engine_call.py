"""A streamed call of the model that runs a TensorRT-LLM engine, from another model of the same server.

This file is copied into a model repository beside every `model.py` that needs it, and stands alone there: standard
library and triton_python_backend_utils.

The call goes over the server's own HTTP endpoint. The call that Triton offers to its python models makes numpy arrays
of each response on a thread that does not hold Python's lock (python_backend r24.10 to main of July 2026,
`ProcessBLSResponseDecoupled`): while other threads run, memory is corrupted, the stub dies, and Triton leaves its
requests without an answer. It is safe only where nothing else runs in the stub until the response is there.

Triton does not hand a cancellation on to the called model: it gets a request to stop, under the same request id.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils


def server_port() -> int:
    """The HTTP port of the server that started this process, from its command line: Triton has no API for it."""
    command = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8", errors="replace")
    return next(int(word.partition("=")[2]) for word in command.split("\0") if word.startswith("--http-port="))


class CallError(Exception):
    """The called model answered with an error, or not to the end; `code` is Triton's."""

    def __init__(self, model: str, code: int, message: str) -> None:
        super().__init__(f"{model}: {message}")
        self.code = code


class EngineCall:
    """A request to the engine's model, whose answers are iterated over once."""

    def __init__(self, port: int, model: str, inputs: Mapping[str, Any]) -> None:
        """Nothing is sent before the first answer is asked for.

        Args:
            port: Of the server that has the model; see `server_port`.
            model: Name of the engine's model.
            inputs: Arrays by input name, each with a batch of one.
        """
        self._port, self._model = port, model
        self._fields: dict[str, Any] = {name: _values(array) for name, array in inputs.items()}
        self._fields["id"] = str(secrets.randbits(63))
        self._answers = self._exchange(self._fields)

    def __iter__(self) -> Iterator[dict[str, list[Any]]]:
        """Flat values by output name, of each response that has tokens; raises `CallError` for an error."""
        return self._answers

    def stop(self) -> None:
        """Let the engine abandon the rest of the answer, and wait until it has; never raises, like `drain`."""
        with contextlib.suppress(CallError):
            deque(self._exchange({**self._fields, "stop": True}), maxlen=0)
        self.drain()

    def drain(self) -> None:
        """Wait for the end of an answer that is complete."""
        with contextlib.suppress(CallError):
            deque(self._answers, maxlen=0)

    def _exchange(self, fields: Mapping[str, Any]) -> Iterator[dict[str, list[Any]]]:
        for event in _stream(self._port, self._model, fields):
            if "output_ids" in event:  # the last response may only say that it is the last
                yield {name: value if isinstance(value, list) else [value] for name, value in event.items()}


def _stream(port: int, model: str, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The responses to a request as JSON objects, each as it comes; raises `CallError`.

    Each request has a connection of its own: a server that stops waits for the idle ones until its time is over.
    """
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(fields).encode())
        response = connection.getresponse()
        if response.status != HTTPStatus.OK:
            raise _refusal(model, response.status, response.read())
        for line in response:
            if line.startswith(b"data:"):
                event = json.loads(line[5:])
                if "error" in event:
                    raise CallError(model, pb_utils.TritonError.INTERNAL, event["error"])
                yield event
    except (OSError, HTTPException, ValueError) as error:
        raise CallError(model, pb_utils.TritonError.UNAVAILABLE, f"the answer broke off: {error!r}") from error
    finally:
        connection.close()


def _refusal(model: str, status: int, body: bytes) -> CallError:
    text = body.removeprefix(b"data:").decode(errors="replace").strip()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"])
    unavailable = status == HTTPStatus.SERVICE_UNAVAILABLE
    return CallError(model, pb_utils.TritonError.UNAVAILABLE if unavailable else pb_utils.TritonError.INTERNAL, text)


def _values(array: Any) -> list[Any]:
    """The elements of an array as values of JSON, flat."""
    return [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()]
