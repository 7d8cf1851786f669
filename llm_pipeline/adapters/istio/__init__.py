"""Routes of Istio."""
