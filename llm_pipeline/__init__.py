"""llm_pipeline: one LLM release from a hub revision to live traffic, with evidence at every gate."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("llm-pipeline")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
