"""Test files find what they share beside them."""

from __future__ import annotations
