"""Neural language models that train in minutes on an ordinary CPU."""

__version__ = "0.1.0"
