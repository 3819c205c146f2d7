"""The ranks that save or load together, the messages between these ranks, and the failures that the messages carry."""
