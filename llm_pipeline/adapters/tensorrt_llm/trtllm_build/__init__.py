"""Everything about `trtllm-build` that needs no TensorRT-LLM: its flags, what it reads, what it writes.

TensorRT-LLM 1.0 to 1.2.x compiles engines with it. Our command lines are checked against a recorded table of its
flags before a GPU is asked for, and its output is checked against what was asked.
"""
