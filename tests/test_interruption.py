import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a shell does to a job in the background
from llm_pipeline.base.entry import interruptible
try:
    with interruptible():
        sys.stdout.write("ready\\n"); sys.stdout.flush()
        time.sleep(30)
except KeyboardInterrupt as error:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    sys.exit(7 if type(error).__name__ == sys.argv[1] else 8)
"""


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")])
def test_both_signals_interrupt_even_where_they_were_ignored(number: signal.Signals, raised: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, raised], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(20) == 7
