"""A state dict as the engine takes and fills it: flat keys, tensors by address, and all other values."""
