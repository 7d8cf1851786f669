"""The canary: routers, sequential analysis, and a controller that continues where a killed one stopped."""
