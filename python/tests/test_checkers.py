"""The checkers of the tree find planted violations, and report nothing in a tree in order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS = """
core:
os: core
commit: core os
cairn/api.h = commit
isa-l/ > core
"""

OLD_HEADERS = """
set(cairn_old_headers
    "api: call old_call"
    "error: failure")
"""

PYTHON_LAYERS = """
errors:
_ranks: errors
_calls: errors _ranks
"""
LISTS = {
    "src/LAYERS": LAYERS,
    "python/LAYERS": PYTHON_LAYERS,
    "cmake/CairnOldHeaders.cmake": OLD_HEADERS,
}
PYTHON_FILES = {
    "python/cairn/__init__.py": "from cairn._calls import save\n",
    "python/cairn/errors.py": "from cairn import _engine\n",
    "python/cairn/_ranks/__init__.py": "",
    "python/cairn/_ranks/ranks.py": "from cairn.errors import Error\n",
    "python/cairn/_calls/__init__.py": "",
    "python/cairn/_calls/save.py": "def save():\n    from cairn import errors\n    from cairn._ranks import ranks\n",
}


def run(checker: str, root: Path) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "tools" / checker), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in {**LISTS, **PYTHON_FILES, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_tree_in_order_passes(tmp_path: Path) -> None:
    files = {
        "src/core/crc.cc": "#include <isa-l/crc.h>\n#include <cairn/error.h>\n",
        "src/os/fd.cc": '#include "core/crc.h"\n#include "os/fd.h"\n',
        "src/core/crc_test.cc": '#include "commit/save.h"\n'
        "TEST(Crc, ASumOfNoBytes15) {}\nTYPED_TEST(Crc, EqualsTheSumOfThePublishedText) {}\n",
        "src/commit/save.cc": '#include <cairn/api.h>\n#include <cairn/error.h>\n#include "os/fd.h"\n',
    }
    plant(tmp_path, files)
    assert run("check_layers.py", tmp_path) == (0, "layers ok: 3 folders, 3 parts of the Python package\n")
    assert run("check_tree.py", tmp_path) == (0, "tree ok\n")


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("src/core/crc.cc", '#include "os/fd.h"\n', "'core' may not include 'os/fd.h'"),
        ("src/os/fd.cc", "#include <isa-l/crc.h>\n", "isa-l/crc.h belongs to core alone"),
        ("src/os/fd.cc", "#include <cairn/api.h>\n", "'os' may not include 'cairn/api.h'"),
        ("src/drawer/fd.cc", "\n", "folder 'drawer' is not in LAYERS"),
        ("src/os/fd.cc", '#include "fd.h"\n', "'fd.h' is not named from src/"),
        ("src/LAYERS", "core: os\nos:\n", "core uses os, not listed above it"),
        ("src/LAYERS", "core:\nos: core\n", "os includes nothing of core"),
        ("cli/main.cc", '#include "core/crc.h"\n', "sees public headers only"),
        ("include/cairn/api.h", '#include "core/crc.h"\n', "a public header includes"),
        ("cli/main.cc", "#include <cairn/failure.h>\n", "'cairn/failure.h' is an old name of 'cairn/error.h'"),
        ("src/os/fd.cc", '#include "os/testing/disk.h"\n', "is for tests"),
        ("python/cairn/_ranks/ranks.py", "from cairn._calls.save import save\n", "may not import '_calls.save'"),
        ("python/cairn/_ranks/ranks.py", "import cairn._calls\n", "'_ranks.ranks' may not import '_calls'"),
        ("python/cairn/_ranks/ranks.py", "from cairn import save\n", "'_ranks.ranks' may not import 'cairn'"),
        ("python/cairn/_ranks/ranks.py", "from cairn import errors, _calls\n", "may not import '_calls'"),
        ("python/cairn/_ranks/ranks.py", "\n", "_ranks imports nothing of errors"),
        ("python/cairn/drawer.py", "\n", "'drawer' is not in LAYERS"),
        ("python/cairn/_calls/load.py", "from cairn._calls import load\n", "_calls.load -> _calls.load"),
        ("python/LAYERS", "errors: _calls\n_calls: errors\n", "errors uses _calls, not listed above it"),
    ],
)
def test_a_wrong_include_is_found(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    code, output = run("check_layers.py", plant(tmp_path, {file: text}))
    assert code == 1
    assert complaint in output


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("src/core/string_utils.cc", "", "'utils' names nothing"),
        ("src/common/crc.cc", "", "'common' names nothing"),
        ("src/core/Crc.cc", "", "snake_case"),
        ("src/format/zip/deep/crc.cc", "", "deeper than"),
        ("src/core/crc.h", "// Crc: a sum.\n#pragma once\n" + "\n" * 300, "302 lines, at most 300"),
        ("src/core/crc.cc", "\n" * 601, "601 lines, at most 600"),
        ("src/core/crc.h", "#pragma once\n", "does not open with a sentence"),
        ("src/core/crc.h", "// Crc: a sum.\n", "lacks #pragma once"),
        ("docs/notes.md", "see /ro" + "ot/notes\n", "mentions"),
        (
            "src/format/zip.h",
            "// Zip.\n#pragma once\nResult<Zip> read_zip(const ByteSource& file);\n",
            "no fuzz/*_fuzz.cc includes it",
        ),
        (
            "src/commit/lease.h",
            "// Lease.\n#pragma once\nResult<Lease> read_lease(const storage::Storage& storage, int rank);\n",
            "lease.h: decodes bytes, and no fuzz/*_fuzz.cc includes it",
        ),
        (
            "src/commit/progress.h",
            "// Progress.\n#pragma once\nstd::optional<Progress> decode_progress(std::string_view line);\n",
            "progress.h: decodes bytes, and no fuzz/*_fuzz.cc includes it",
        ),
        (
            "src/core/crc_test.cc",
            "TEST(Crc, SumOfNoBytes14) {}\n",
            "crc_test.cc: the case Crc.SumOfNoBytes14 has 14 characters, not 15 to 30",
        ),
        (
            "cli/table_test.cc",
            "TEST_P(Table,\n       AlignsTheNumbersOfEveryColumn31) {}\n",
            "Table.AlignsTheNumbersOfEveryColumn31 has 31 characters, not 15 to 30",
        ),
        ("fuzz/zip_fuzz.cc", "", "no seeds in fuzz/corpus/zip"),
    ],
)
def test_a_wrong_shape_is_found(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    code, output = run("check_tree.py", plant(tmp_path, {file: text}))
    assert code == 1
    assert complaint in output


CLEAR = "Each thread clears the flag, and a second clearing of the flag is harmless. " * 20
VAGUE = "It is what they do if one of them sees that it has not done so, or another has. " * 20


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("docs/page.md", "# Page\n\n", "\n"),
        ("src/core/crc.cc", "// ", "\nint crc;\n"),
        ("tools/crc.py", '"""', '"""\n'),
        ("tools/crc.py", "# ", "\n"),
        ("tools/crc.py", 'r"""', '"""\n'),
        ("tools/crc.pyi", '"""', '"""\n'),
        ("src/CMakeLists.txt", "# ", "\nproject(crc)\n"),
        ("cmake/crc.cmake", "set(crc 1)  # ", "\n"),
    ],
)
def test_prose_that_hides_its_subjects_is_found(tmp_path: Path, file: str, before: str, after: str) -> None:
    group = file if file.endswith(".md") else "comments"
    plant(tmp_path, {file: before + CLEAR + after, "tools/prose_limits.txt": "# limits\n"})
    assert run("check_prose.py", tmp_path) == (0, "prose ok: 1 groups\n")
    plant(tmp_path, {file: before + VAGUE + after})
    code, output = run("check_prose.py", tmp_path)
    assert code == 1
    found = re.search(rf"^{re.escape(group)}: ([\d.]+) % of the words stand for another word", output, re.MULTILINE)
    assert found and float(found[1]) > 40
    plant(tmp_path, {"tools/prose_limits.txt": f"{float(found[1]) + 0.1} {group}\n"})
    assert run("check_prose.py", tmp_path)[0] == 0


@pytest.mark.parametrize(
    ("file", "test", "word"),
    [
        ("python/tests/test_save.py", "def test_nobody_is_left(x: int) -> None: ...\n", "nobody"),
        ("python/tests/test_save.py", "class TestSave:\n    def test_a_save_that_wants_more(self): ...\n", "wants"),
        ("src/core/crc_test.cc", "TEST(Crc, IsWhatThePolynomialGives) {}\n", "what"),
        ("src/core/crc_test.cc", "TEST_P(Crc,\n       FailsIfItIsAOne) {}\n", "it"),
    ],
)
def test_a_name_of_a_test_that_hides_its_subject_is_found(tmp_path: Path, file: str, test: str, word: str) -> None:
    plant(
        tmp_path, {file: test.replace(word, "sum").replace(word.title(), "Sum"), "tools/prose_limits.txt": "# limits\n"}
    )
    assert run("check_prose.py", tmp_path)[0] == 0
    plant(tmp_path, {file: test})
    code, output = run("check_prose.py", tmp_path)
    assert code == 1
    assert re.search(rf"^{file}:\d+: the name of a test holds '{word}'", output, re.MULTILINE)


def test_a_limit_of_prose_follows_the_text(tmp_path: Path) -> None:
    plant(tmp_path, {"docs/page.md": CLEAR, "tools/prose_limits.txt": "9.0 docs/page.md\n5.0 docs/gone.md\n"})
    code, output = run("check_prose.py", tmp_path)
    assert code == 1
    assert "the limit of docs/page.md is 9.0, and 5.0 is enough now" in output
    assert "docs/gone.md is no page" in output


def test_the_count_separates_failed_crashed_and_skipped_tests(tmp_path: Path) -> None:
    reports = {
        "release/core_test.xml": '<testsuites><testcase name="a" status="run"/><testcase name="b" status="run">'
        "<failure/></testcase></testsuites>",
        "ctest-release.xml": '<testsuite><testcase name="core_test" status="fail"/>'
        '<testcase name="crashed_test" status="fail"/><testcase name="layers" status="run"/></testsuite>',
        "pytest.xml": '<testsuites><testcase name="c"/><testcase name="d"><skipped/></testcase></testsuites>',
    }
    for name, text in reports.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert run("count_tests.py", tmp_path) == (1, "3 passed, 2 failed, 1 skipped\n")
    (tmp_path / "release/core_test.xml").write_text('<testsuites><testcase name="a" status="run"/></testsuites>')
    (tmp_path / "ctest-release.xml").write_text("<testsuite/>")
    assert run("count_tests.py", tmp_path) == (0, "2 passed, 0 failed, 1 skipped\n")
