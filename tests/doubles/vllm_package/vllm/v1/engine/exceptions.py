"""The engine's end."""


class EngineDeadError(Exception):
    """The engine's process is gone."""
