"""`python -m llm_pipeline`: the command line."""

from llm_pipeline.base.collector import spare_imports

spare_imports()

from llm_pipeline.cli import main  # noqa: E402 - after the line that is for all imports

if __name__ == "__main__":
    raise SystemExit(main())
