"""The load test: open-loop traffic, measured from the schedule, judged with confidence."""
