"""`python -m llm_pipeline`: the command line."""

import os

from llm_pipeline.base.collector import spare_imports

spare_imports()
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some reads the metadata of all packages

from llm_pipeline.cli import main  # noqa: E402 - after the line that is for all imports

if __name__ == "__main__":
    raise SystemExit(main())
