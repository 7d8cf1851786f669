"""Routes of the Kubernetes Gateway API."""
