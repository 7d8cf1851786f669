"""`python -m llm_pipeline`: the command line."""

from llm_pipeline.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
