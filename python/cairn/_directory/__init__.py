"""The directory of a checkpoint: the directory that an argument names, the path without links, and opening."""
