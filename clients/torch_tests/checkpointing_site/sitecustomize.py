"""Runs at the start of every Python process of the tests of torch_checkpointing."""

import atexit
import os
import sys
from pathlib import Path

_files = os.environ.get("CHECKPOINTING_TESTS_FILES")

if _files and "resource_tracker" not in " ".join(sys.orig_argv):
    import cairn.torch_checkpointing

    @atexit.register
    def _leave_engine_calls() -> None:
        with Path(os.environ["PAIRED_TESTS_CALLS"]).open("a") as calls:
            calls.write(f"{cairn.report().engine_calls}\n")

    cairn.torch_checkpointing.install(files=_files)  # type: ignore[arg-type]
