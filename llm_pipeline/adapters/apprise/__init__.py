"""Notifications by Apprise: Teams, PagerDuty, Opsgenie, SMS and some hundred services more."""
