"""The served model of `loadgen.py`: it answers with the prompt, `max_tokens` times, without a pause.

Triton runs this file as `model.py`: it is copied beside the configuration of the tests' toy model.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """One answer after another: what costs the server little costs the load generators' share of the machine little."""

    def execute(self, requests: list) -> None:
        """Send every token of every request as a response of its own."""
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[:1]
            tokens = int(pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy().reshape(-1)[0])
            sender = request.get_response_sender()
            for number in range(1, tokens + 1):
                last = number == tokens
                outputs = [
                    pb_utils.Tensor("text_output", text.astype(object)),
                    pb_utils.Tensor("output_tokens", np.array([1], np.int32)),
                    pb_utils.Tensor("finish_reason", np.array([b"length" if last else b""], dtype=object)),
                    pb_utils.Tensor("served_version", np.array([1], np.int32)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL if last else 0)
