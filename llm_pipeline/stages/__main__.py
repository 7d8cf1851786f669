"""`python -m llm_pipeline.stages NAME --request R --result F`: the process of one stage, which a runner starts."""

import os

from llm_pipeline.base.collector import spare_imports

spare_imports()
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some reads the metadata of all packages

from llm_pipeline.release.execute import main  # noqa: E402 - after the line that is for all imports

if __name__ == "__main__":
    raise SystemExit(main())
