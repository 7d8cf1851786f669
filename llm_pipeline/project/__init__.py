"""A project of one's own: the files that a release needs, written into a new directory.

A project holds a release, a target, a deployment and a policy. The package's recipes, targets and policies go on to be
known in it by their names (`llm_pipeline.config.files`); a file of the same name in the project takes their place.
"""
