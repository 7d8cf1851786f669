"""Pure mathematics that accuracy, load test and canary share: intervals, e-values, sequential tests."""
