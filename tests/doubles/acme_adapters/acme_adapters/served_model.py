"""What Triton's python backend runs of this engine: it answers every prompt with the prompt."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0]
            answer = pb_utils.Tensor("text_output", np.array([text], dtype=object))
            request.get_response_sender().send(
                pb_utils.InferenceResponse([answer]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
