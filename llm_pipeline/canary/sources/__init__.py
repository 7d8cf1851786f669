"""Where counts of the arms come from: Envoy's statistics, Prometheus, CloudWatch."""
