"""parasim: a discrete-event simulator of parallel training of large models."""

__version__ = "0.1.0"
