"""Modules of this directory that its tests share."""

from __future__ import annotations
