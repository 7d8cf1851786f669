"""A language model of words: it repeats the prompt's words for ever, one word a token, in the real model's tensors.

Words in the environment variable TOY_FAULTS change it: `crash` fails to load, `truncate` stops one token short,
`stall` sleeps a second every 20th request while everybody waits, `deaf` ignores cancellation, `drift` says other
words, `keep_going` ignores max_tokens by one, `gullible` checks no length, `no_stops` reads over stop words,
"""

import ctypes
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
FAULTS = set(os.environ.get("TOY_FAULTS", "").split())
STEP_SECONDS = float(os.environ.get("TOY_STEP_SECONDS", "0.004"))
LONGEST = 4096


def value(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def initialize(self, args):
        if "crash" in FAULTS:
            raise RuntimeError("the engine file rank0.engine was built for another GPU")
        family = pb_utils.MetricFamily(
            name="llm_active_requests", description="requests in the batcher", kind=pb_utils.MetricFamily.GAUGE
        )
        self.family, self.active = family, family.Metric(labels={"model": "llm", "version": args["model_version"]})
        outcomes = pb_utils.MetricFamily(
            name="llm_requests_total", description="requests by outcome", kind=pb_utils.MetricFamily.COUNTER
        )
        self.outcomes, self.cancelled = outcomes, outcomes.Metric(labels={"outcome": "cancelled"})
        tokens = pb_utils.MetricFamily(
            name="llm_tokens_total", description="generated tokens", kind=pb_utils.MetricFamily.COUNTER
        )
        self.token_family, self.tokens = tokens, tokens.Metric(labels={"model": "llm"})
        for one in (family, outcomes, tokens, self.active, self.cancelled, self.tokens):
            # Versions share metrics, and a collected one is freed under the others: the server crashes later (2.51).
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
        self.served = 0
        self.step_lock, self.metric_lock = threading.Lock(), threading.Lock()
        self.live = 0

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            words = value(request, "text_input", b"").decode().split()
            tokens = int(value(request, "max_tokens", 16))
            stops = pb_utils.get_input_tensor_by_name(request, "stop")
            stops = [] if stops is None else [word.decode() for word in stops.as_numpy()]
            stream = bool(value(request, "stream", False))
            problem = self.refuse(words, tokens)
            if problem:
                error = pb_utils.TritonError(problem, pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                continue
            self.served += 1
            self.count(1)
            threading.Thread(target=self.generate, args=(sender, words, tokens, stream, stops), daemon=True).start()

    def count(self, change, *, cancelled=False):
        with self.metric_lock:  # two metric calls at once end the whole server with a segmentation fault (2.51)
            self.live += change
            self.active.set(self.live)
            if cancelled:
                self.cancelled.increment(1)

    def refuse(self, words, tokens):
        if not words:
            return "invalid: text_input is empty"
        if "gullible" in FAULTS:
            return ""
        if not 1 <= tokens <= LONGEST or len(words) + tokens > LONGEST:
            return f"invalid: the prompt and max_tokens {tokens} exceed {LONGEST} tokens"
        return ""

    def generate(self, sender, words, tokens, stream, stops):
        if "stall" in FAULTS and self.served % 20 == 0:
            with self.step_lock:
                time.sleep(1.0)
        count = min(tokens, LONGEST) + ("keep_going" in FAULTS) - ("truncate" in FAULTS)
        said = []
        for index in range(count):
            with self.step_lock:
                pass
            time.sleep(STEP_SECONDS)
            if sender.is_cancelled() and "deaf" not in FAULTS:
                sender.send(flags=FINAL)
                self.count(-1, cancelled=True)
                return
            word = "drift" if "drift" in FAULTS else words[index % len(words)]
            if word in stops and "no_stops" not in FAULTS:
                self.send(sender, "".join(said) if not stream else "", len(said) if not stream else 0, "stop")
                self.count(-1)
                return
            said.append(f" {word}")
            if stream:
                self.send(sender, said[-1], 1, "length" if index == count - 1 else "")
        if not stream:
            self.send(sender, "".join(said), count, "length")
        self.count(-1)

    def send(self, sender, text, tokens, reason):
        with self.metric_lock:
            self.tokens.increment(tokens)
        outputs = [
            pb_utils.Tensor("text_output", np.array([text.encode()], dtype=object)),
            pb_utils.Tensor("output_tokens", np.array([tokens], np.int32)),
            pb_utils.Tensor("finish_reason", np.array([reason.encode()], dtype=object)),
            pb_utils.Tensor("served_version", np.array([1], np.int32)),
        ]
        sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL if reason else 0)
