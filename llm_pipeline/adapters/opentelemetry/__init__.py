"""A release as a trace, with a span a stage, and counters of all releases, by OpenTelemetry."""
