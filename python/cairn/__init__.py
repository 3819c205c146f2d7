"""Cairn saves and loads the state of distributed training."""

from cairn._engine import __version__

__all__ = ["__version__"]
