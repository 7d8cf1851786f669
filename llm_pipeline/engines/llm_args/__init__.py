"""The LLM-args file of TensorRT-LLM's LLM API: rendered for a target, and checked against recorded schemas.

    arguments = render_llm_args(target, checkpoint=directory)
    check_llm_args(arguments, target.runtime_version).require("llm_args.yaml")

The same keys are legal in `trtllm-serve --config`. They
change between versions without notice, and an unknown one is only found when the model is loaded on a GPU. So the
schemas of two editions are recorded in `data/`, each with its source and with marks where it is uncertain.
"""
