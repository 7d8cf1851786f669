"""Runs the commands of docs/own-model.md, word for word: `MODEL=DIRECTORY python tests/corpus/own_model_page.py`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own-model.md"


def blocks() -> list[str]:
    """The page's commands for this machine; those before the clone are no `bash` block."""
    return re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def main() -> int:
    """Run them one after the other; the exit code of the first that fails."""
    for block in blocks():
        sys.stdout.write(f"\n$ {block}")
        sys.stdout.flush()
        began = time.monotonic()
        code = subprocess.run(["bash", "-euc", block], cwd=ROOT, check=False).returncode
        sys.stdout.write(f"\n[exit code {code}, {time.monotonic() - began:.1f} s]\n")
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
