"""Exceptions as plain data for another process, and as DCP's ``CheckpointException`` for the caller."""
