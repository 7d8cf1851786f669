"""The load client's processes: what each sends, reads, times and hands back. `loadtest/measure.py` starts them."""
