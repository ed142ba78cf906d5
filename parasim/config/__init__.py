"""Run files: reading with positions, the schema, overrides, and resolution to a Plan and a Run."""

from .loading import build, load, vary
from .plan import Plan
from .run import Run

__all__ = ["Plan", "Run", "build", "load", "vary"]
