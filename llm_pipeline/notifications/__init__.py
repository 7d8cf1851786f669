"""What happens to releases, as one stream of events in the store, and the channels that tell people of it.

    tell(store, deployment, no_connections, events=[judged(origin, result)], canaries={"h100": release_id})
    for event in read(store):                # also `llm-pipeline events --follow --json`
        ...

Events are derived from the records that a release keeps anyway (`happened`), appended once to the stream (`stream`),
and sent once by each channel, whose position is kept (`outbox`). Whoever runs or watches a release calls `tell` as
often as it likes; nothing that goes wrong there reaches the caller.
"""
