"""A project of one's own: the files that a release needs, written into a new directory.

The shipped recipes, targets and policies are copied, so that a project is complete, and its files are its owner's.
`templates/` holds what names the project's own things: a release, a deployment and a policy.
"""
