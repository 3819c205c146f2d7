"""Asynchronous saves of this process: their memory, their writers, their futures, and their end."""
