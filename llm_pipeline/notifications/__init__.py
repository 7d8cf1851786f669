"""Notifications about canaries, by the channels that a deployment names.

    notify(store, deployment.notifications, no_connections, release_id, target)

What there is to tell are the events in the canary's record. Whoever drives or watches a canary calls `notify` as often
as it likes: what was told is remembered in the store, and nothing that goes wrong there reaches the caller.
"""
