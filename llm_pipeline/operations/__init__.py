"""The acts on production, one function each, whoever asks: the command line, a DAG, the guard, a stage's process.

Promote, roll back, approve, start, stop, replace, stage by hand. Only these modules and the canary's own controller
write routes, slots and the pointers of production, and they do so under the lease of the place and with a fencing
token (`canary.epochs`): of two who act at the same moment one is refused, and asking twice is safe.
"""
