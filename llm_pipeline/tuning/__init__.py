"""The configuration sweep: which settings of a target serve the workload best, by the load gate's own measure."""
