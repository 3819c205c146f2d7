"""Runs at the start of every Python process of torch's tests: those that pytest starts, and those that tests spawn."""

import os
import sys

_HELPERS = ("resource_tracker", "forkserver", "torch._inductor", "pip")

if "TORCH_TESTS_MODE" in os.environ and not any(word in " ".join(sys.orig_argv) for word in _HELPERS):
    import adaptation  # noqa: F401
