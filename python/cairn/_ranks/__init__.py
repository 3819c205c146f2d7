"""The ranks that save or load together, and the messages between these ranks."""
