"""`python -m llm_pipeline`: the command line."""

from llm_pipeline.cli import main

raise SystemExit(main())
