"""Checks on a real TensorRT-LLM, its GPU and its Triton, against what this package has recorded of them.

    python -m llm_pipeline.verification prepare --output DIR     # in the model image: checkpoints and golden prompts
    python -m llm_pipeline.verification check --prepared DIR --output DIR     # in the serving image, on a GPU

`docker/verify-gpu.sh` runs both; `docs/verification.md` says which statement each step verifies. A difference from a
recorded contract is a FAIL that names it, so that the contract can be refreshed.
"""
