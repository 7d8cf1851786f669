"""The canary: routers, sequential analysis, and a controller that survives its own death."""
