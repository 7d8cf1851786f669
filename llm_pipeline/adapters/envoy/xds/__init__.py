"""Envoy's configuration for one target, as data (xDS v3).

Each slot has a plain cluster and, for the time it is on trial, a guarded one (outlier detection, no panic mode,
active health checks) behind an aggregate `<slot>_failover` that falls back to the other slot's plain cluster.
Stable answers meanwhile through an aggregate `<slot>_backed`, whose failures are tried again on the candidate; nothing
ejects its server, which may be the only one that works.
All of them exist from the start: moving traffic changes routes only, never clusters.
"""
