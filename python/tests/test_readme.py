"""The programs of README.md, and of docs/guide/cpp.md, run unchanged; README.md has the measured table.

The Python programs of README.md and of docs/guide/save-and-resume.md run in fresh processes: one saves, the next
resumes, and the end equals the end of an uninterrupted run bit for bit.
"""

import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from commands import run

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CPP_PAGE = (ROOT / "docs/guide/cpp.md").read_text()
RESUME_PAGE = (ROOT / "docs/guide/save-and-resume.md").read_text()

# `steps` comes from the command line. A new process has another model, and an optimizer without state.
JOB = """
import os, sys
import torch

steps = int(sys.argv[1])
torch.set_num_threads(1)
model = torch.nn.Linear(8, 4)
with torch.no_grad():
    model.weight.fill_(0 if os.path.isdir("checkpoints") else 1)
    model.bias.fill_(2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

def train(step):
    optimizer.zero_grad()
    batch = torch.randn(2, 8, generator=torch.Generator().manual_seed(step))
    model(batch).square().sum().backward()
    optimizer.step()
"""

DIGEST = """
import hashlib
digest = hashlib.sha256()
for tensor in [*model.parameters(), *(part for state in optimizer.state.values() for _, part in sorted(state.items()))]:
    digest.update(tensor.detach().numpy().tobytes())
print(digest.hexdigest())
"""

UNTIL_HERE = """
for step in range(1, steps + 1):
    train(step)
"""

FROM_HERE = """
for step in range(step + 1, steps + 1):
    train(step)
"""

PROGRAM = """
#include <vector>
int main() {{
{body}
  const cairn::Value* step = state.value("step");
  return step != nullptr && *step == cairn::Value(1000) && saved_step == 1000 ? 0 : 1;
}}
"""


def blocks(language: str, page: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return found


def block(language: str, page: str) -> str:
    (only,) = blocks(language, page)
    return only


def job(folder: Path, steps: int, *parts: str) -> str:
    """Runs a program in a fresh process, and returns the digest of its model and optimizer."""
    folder.mkdir(exist_ok=True)
    return run(sys.executable, "-W", "error", "-c", "\n".join([JOB, *parts, DIGEST]), str(steps), cwd=folder)


def test_the_python_programs_resume_bit_for_bit_in_fresh_processes(tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", 4, UNTIL_HERE)
    first, second = blocks("python", RESUME_PAGE)[:2]
    assert job(tmp_path / "page", 2, UNTIL_HERE, first) != whole
    imports = "import cairn\nfrom cairn.state_dict import get_state_dict, set_state_dict"
    assert job(tmp_path / "page", 4, imports, second, FROM_HERE) == whole
    program = block("python", README)
    assert job(tmp_path / "readme", 2, program) != whole
    assert job(tmp_path / "readme", 4, program) == whole
    assert len(list((tmp_path / "readme/checkpoints").iterdir())) == 4


def compiled(source: Path) -> Path:
    """Compiles a C++ program beside its source."""
    program = source.with_suffix("")
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    libraries = [ROOT / "build/release/src/libcairn.a", "-lisal", "-lpthread"]
    run(os.environ.get("CXX", "c++"), *flags, source, *libraries, "-o", program)
    return program


def test_the_commands_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = [line.removeprefix("$ ") for line in block("console", README).splitlines()]
    assert len(commands) >= 4
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    outputs = [run("bash", "-c", command, cwd=tmp_path, env={"PATH": path}) for command in commands]
    assert all("step" in output for output in outputs[:3])


@pytest.mark.slow
def test_the_cpp_program_compiles_and_runs(tmp_path: Path) -> None:
    include, body = blocks("cpp", CPP_PAGE)[0].split("\n\n", 1)
    (tmp_path / "readme.cc").write_text(include + PROGRAM.format(body=body))
    run(compiled(tmp_path / "readme.cc"), cwd=tmp_path)
    assert (tmp_path / "checkpoints/step-1000/.metadata").is_file()


def has_excerpt(program: str, excerpt: str) -> bool:
    """Whether the parts of the excerpt, between lines of dots, stand in the program in this order."""
    place = 0
    for part in re.split(r"^ *\.\.\.\n", excerpt, flags=re.MULTILINE):
        found = program.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True


def test_the_cpp_excerpts_of_the_page_are_lines_of_the_examples() -> None:
    programs = [path.read_text() for path in sorted((ROOT / "examples").glob("*.cc"))]
    excerpts = blocks("cpp", CPP_PAGE)[1:]
    assert len(excerpts) >= 5
    for excerpt in excerpts:
        assert any(has_excerpt(program, excerpt) for program in programs), excerpt


@pytest.mark.slow
def test_the_error_on_the_cpp_page_is_the_output_of_the_example(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```\n(kCorrupt: .*?)```$", CPP_PAGE, re.DOTALL | re.MULTILINE)
    shutil.copy(ROOT / "examples/07_errors.cc", tmp_path)
    assert shown in run(compiled(tmp_path / "07_errors.cc"), tmp_path / "checkpoints")


def test_the_table_and_the_picture_show_the_measured_numbers() -> None:
    script = runpy.run_path(str(ROOT / "bench/speed_chart.py"))
    speed = json.loads((ROOT / "docs/speed.json").read_text())
    for table in speed:
        assert script["table"](table) in README
        assert table["date"] in README
    assert script["picture"](speed) == (ROOT / "docs/speed.svg").read_text()
