"""Accuracy: evaluations with lm-eval, and the paired statistics that judge them."""
