"""What is told of each step."""


class StatLoggerBase:
    """Base of loggers."""
