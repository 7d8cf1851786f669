"""Run one command and write its figures as JSON: `python -I -S transfer_timed.py FIGURES COMMAND...`.

A process's peak memory counts from that of whoever started it, so this starter imports next to nothing.
"""

import json
import os
import sys
import time

_, figures, *command = sys.argv
started = time.monotonic()
child = os.posix_spawnp(command[0], command, os.environ)
_, status, usage = os.wait4(child, 0)
with open(figures, "w") as stream:  # noqa: PTH123 - pathlib is an import
    json.dump(
        {
            "seconds": time.monotonic() - started,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_bytes": usage.ru_maxrss * 1024,
        },
        stream,
    )
sys.exit(os.waitstatus_to_exitcode(status))
