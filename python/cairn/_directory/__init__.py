"""The directory of a checkpoint: which directory an argument names, its path without links, and opening it."""
