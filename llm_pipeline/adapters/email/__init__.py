"""Notifications by e-mail."""
