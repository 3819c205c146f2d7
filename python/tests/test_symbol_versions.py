"""The versions of the C library's symbols that the built programs need: the tag of the wheel is manylinux_2_34."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import cairn._engine

ENGINE = Path(cairn._engine.__file__)
PROGRAMS = [ENGINE, ENGINE.parent / "bin/cairn-writer"]
GLIBC_MAX = (2, 34)
# A build against a newer C library takes newer versions of symbols that glibc 2.36 gives an old version.
GLIBC_OF_BUILD = "glibc 2.36"


@pytest.mark.skipif(
    os.confstr("CS_GNU_LIBC_VERSION") != GLIBC_OF_BUILD,
    reason=f"the versions depend on the C library of the build; this test knows {GLIBC_OF_BUILD}",
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_programs_need_no_symbol_above_the_tag_of_the_wheel(program: Path) -> None:
    table = subprocess.run(["objdump", "-T", program], capture_output=True, text=True, check=True).stdout
    versions = re.findall(r"\(?GLIBC_(\d+)\.(\d+)(?:\.\d+)?\)?\s+(\S+)", table)
    assert versions, "objdump names no versioned symbol"
    newer = [f"{name} of {major}.{minor}" for major, minor, name in versions if (int(major), int(minor)) > GLIBC_MAX]
    assert not newer
