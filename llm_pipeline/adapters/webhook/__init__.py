"""Notifications by a Slack-compatible webhook."""
