"""A language model of words: it repeats the prompt's words for ever, one word a token, in the real model's tensors."""

import ctypes
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
STEP_SECONDS = float(os.environ.get("TOY_STEP_SECONDS", "0.004"))
LONGEST = 4096


class TritonPythonModel:
    def initialize(self, args):  # noqa: ARG002 - Triton's
        kinds = pb_utils.MetricFamily
        self.active = self.metric("llm_active_requests", kinds.GAUGE)
        self.tokens = self.metric("llm_tokens_total", kinds.COUNTER)
        self.metric_lock = threading.Lock()  # two metric calls at once end the whole server (2.51)

    def metric(self, name, kind):
        family = pb_utils.MetricFamily(name=name, description=name, kind=kind)
        made = family.Metric(labels={"model": "llm"})
        for one in (family, made):
            # Versions share metrics, and a collected one is freed under the others: the server crashes later (2.51).
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
        return made

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            given = {tensor.name(): tensor.as_numpy().reshape(-1).tolist() for tensor in request.inputs()}
            words, tokens = given["text_input"][0].decode().split(), given.get("max_tokens", [16])[0]
            if not words or not 1 <= tokens <= LONGEST - len(words):
                refusal = f"invalid: the prompt and max_tokens {tokens} exceed {LONGEST} tokens, or are none"
                error = pb_utils.TritonError(refusal, pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                continue
            self.count(self.active, 1)
            asked = (sender, words, tokens, [word.decode() for word in given.get("stop", ())])
            stream = given.get("stream", [False])[0]
            threading.Thread(target=self.generate, args=asked, kwargs={"stream": stream}, daemon=True).start()

    def count(self, metric, change):
        with self.metric_lock:
            metric.increment(change)

    def generate(self, sender, words, tokens, stops, *, stream):
        said, reason = [], ""
        while not reason:
            time.sleep(STEP_SECONDS)
            if sender.is_cancelled():
                sender.send(flags=FINAL)
                break
            word = words[len(said) % len(words)]
            reason = "stop" if word in stops else "length" if len(said) == tokens - 1 else ""
            new = [] if reason == "stop" else [f" {word}"]
            said += new
            if stream or reason:
                self.send(sender, new if stream else said, reason)
        self.count(self.active, -1)

    def send(self, sender, words, reason):
        self.count(self.tokens, len(words))
        outputs = [
            pb_utils.Tensor("text_output", np.array(["".join(words).encode()], dtype=object)),
            pb_utils.Tensor("output_tokens", np.array([len(words)], np.int32)),
            pb_utils.Tensor("finish_reason", np.array([reason.encode()], dtype=object)),
        ]
        sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL if reason else 0)
