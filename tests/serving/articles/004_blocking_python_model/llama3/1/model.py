# ruff: noqa: ARG002, BLE001 the mistakes are on purpose
"""A model that waits for whole batches and answers failures as text. Read by the linter's test, never run."""

import numpy as np
import triton_python_backend_utils as pb_utils
from tensorrt_llm import LLM, BuildConfig, SamplingParams
from tensorrt_llm.plugin.plugin import PluginConfig


class TritonPythonModel:
    def initialize(self, args):
        build = BuildConfig(max_batch_size=128, plugin_config=PluginConfig.from_dict({"paged_kv_cache": True}))
        self.llm = LLM(model="/weights", build_config=build)

    def execute(self, requests):
        prompts = []
        for request in requests:
            try:
                tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
                prompts.append(tensor.as_numpy()[0].decode())
            except Exception:
                prompts.append("")
        try:
            texts = [answer.outputs[0].text for answer in self.llm.generate(prompts, SamplingParams())]
        except Exception as error:
            texts = [f"Error: {error}" for _ in requests]
        outputs = [pb_utils.Tensor("text_output", np.array([text], dtype=object)) for text in texts]
        return [pb_utils.InferenceResponse(output_tensors=[output]) for output in outputs]
