"""Runs at the start of every Python process of torch's tests, both of pytest and of tests that spawn."""

import os
import sys

# Parts of the command lines of processes without tests: of multiprocessing and of torch's compiler. For pip whole words
# are compared, because the ranks spawned by multiprocessing have an argument `pipe_handle`.
_HELPERS = ("resource_tracker", "torch._inductor", "torch/_inductor")


def _is_helper() -> bool:
    words = sys.orig_argv[1:]
    return words[:2] == ["-m", "pip"] or any(helper in word for word in words for helper in _HELPERS)


if "TORCH_TESTS_MODE" in os.environ and not _is_helper():
    import adaptation  # noqa: F401
