"""An interpreter for deployments of tests, whose stages are a script's."""

from __future__ import annotations

import sys
from pathlib import Path


def write_interpreter(path: Path, stages: Path, *python_path: Path) -> Path:
    """A python whose `-m llm_pipeline.stages` runs another script; all else it does as this one."""
    path.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={':'.join(map(str, python_path))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        f'case "$*" in *"-m llm_pipeline.stages "*) ;; *) exec {sys.executable} "$@" ;; esac\n'
        f'until [ "$1" = llm_pipeline.stages ]; do shift; done\nshift\nexec {sys.executable} {stages} "$@"\n'
    )
    path.chmod(0o755)
    return path
