"""Finds the interpreter that has TensorRT-LLM or vLLM, and links its prefix to where the image looks for `python3`.

    python3 docker/serving_python.py /opt/llm-pipeline/python

Since 26.03 NVIDIA's image keeps TensorRT-LLM in a virtual environment of its own, which the system's interpreter does
not see, nor does an environment that is made from it. The link is to the whole prefix: an interpreter, and Triton's
stub that embeds one, finds its packages by the `pyvenv.cfg` beside its directory, so a link to the program alone would
lose them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGES = ("tensorrt_llm", "vllm")
ENVIRONMENTS = Path("/opt")
_PREFIX_IF_IT_HAS = """
import importlib.util, sys
print(sys.prefix if any(map(importlib.util.find_spec, sys.argv[1:])) else "")
"""


def interpreters(environments: Path) -> Iterator[Path]:
    """The first `python3` on PATH, then those of the environments in a directory."""
    if found := shutil.which("python3"):
        yield Path(found)
    yield from sorted(environments.glob("*/bin/python3"))


def prefix_of(interpreter: Path) -> Path | None:
    """Where an interpreter's packages are, if it has an engine; nothing is imported, as that needs a driver."""
    command = [str(interpreter), "-c", _PREFIX_IF_IT_HAS, *PACKAGES]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    prefix = answer.stdout.strip()
    return Path(prefix) if answer.returncode == 0 and prefix else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Link the prefix; 1 with one line of error where no interpreter has an engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("link", type=Path, help="what to make a link of")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="a directory of virtual environments")
    options = parser.parse_args(arguments)
    tried = list(interpreters(options.environments))
    for interpreter in tried:
        if prefix := prefix_of(interpreter):
            options.link.parent.mkdir(parents=True, exist_ok=True)
            options.link.symlink_to(prefix)
            sys.stdout.write(f"{options.link}/bin/python3 is that of {prefix}\n")
            return 0
    sys.stderr.write(
        f"error: no interpreter has {' or '.join(PACKAGES)}; tried {', '.join(map(str, tried)) or 'none'}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
