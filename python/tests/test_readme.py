"""The programs of README.md, and of docs/guide/cpp.md, run unchanged; README.md has the measured table."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CPP_PAGE = (ROOT / "docs/guide/cpp.md").read_text()

MODEL = """
import torch
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
step = 1000
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


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_python_program_runs(tmp_path: Path) -> None:
    (program,) = blocks("python", README)
    run(sys.executable, "-c", MODEL + program, cwd=tmp_path)
    assert (tmp_path / "checkpoints/step-1000/.metadata").is_file()


@pytest.mark.slow
def test_the_cpp_program_compiles_and_runs(tmp_path: Path) -> None:
    first, _ = blocks("cpp", CPP_PAGE)  # test_cpp_install.py compiles the calls of the second, which needs MPI
    include, body = first.split("\n\n", 1)
    (tmp_path / "readme.cc").write_text(include + PROGRAM.format(body=body))
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    libraries = [ROOT / "build/release/src/libcairn.a", "-lisal", "-lpthread"]
    run(os.environ.get("CXX", "c++"), *flags, "readme.cc", *libraries, "-o", "readme", cwd=tmp_path)
    run(tmp_path / "readme", cwd=tmp_path)
    assert (tmp_path / "checkpoints/step-1000/.metadata").is_file()


def test_the_table_and_the_picture_show_the_measured_numbers() -> None:
    script = runpy.run_path(str(ROOT / "bench/speed_chart.py"))
    speed = json.loads((ROOT / "docs/speed.json").read_text())
    for table in speed:
        assert script["table"](table) in README
        assert table["date"] in README
    assert script["picture"](speed) == (ROOT / "docs/speed.svg").read_text()
