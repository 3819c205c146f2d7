"""A state dict as the engine reads and fills it: flat keys, tensors by address, and values."""
