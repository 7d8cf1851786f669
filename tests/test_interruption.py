import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a shell does to a job in the background
from llm_pipeline.interruption import interrupt_on_termination
interrupt_on_termination()
try:
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    time.sleep(30)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_interrupt_even_where_they_were_ignored(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(20) == 7
