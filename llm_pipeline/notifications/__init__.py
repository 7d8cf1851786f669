"""What people are told of releases: one kind of event, sent by Apprise at once; and a run of MLflow for each release.

tell(deployment, [judged(origin, result)])
"""
