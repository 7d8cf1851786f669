"""Notifications about canaries, by a Slack-compatible webhook and by e-mail.

    channels = channels_here(deployment.notifications)
    notify(store, deployment.notifications, channels, release_id, target)

What there is to tell are the events in the canary's record. Whoever drives or watches a canary calls `notify` as often
as it likes: what was told is remembered in the store, and nothing that goes wrong there reaches the caller.
"""
