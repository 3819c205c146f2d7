"""Asynchronous saves of this process: the memory and the writers they use, their futures, and their end."""
