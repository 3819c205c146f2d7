"""The programs of README.md run unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

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
  return step != nullptr && *step == cairn::Value(1000) ? 0 : 1;
}}
"""


def block(language: str) -> str:
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_python_program_runs(tmp_path: Path) -> None:
    run(sys.executable, "-c", MODEL + block("python"), cwd=tmp_path)
    assert (tmp_path / "checkpoints/step-1000/.metadata").is_file()


@pytest.mark.slow
def test_the_cpp_program_compiles_and_runs(tmp_path: Path) -> None:
    include, body = block("cpp").split("\n\n", 1)
    (tmp_path / "readme.cc").write_text(include + PROGRAM.format(body=body))
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    libraries = [ROOT / "build/release/src/libcairn.a", "-lisal", "-lpthread"]
    run(os.environ.get("CXX", "c++"), *flags, "readme.cc", *libraries, "-o", "readme", cwd=tmp_path)
    run(tmp_path / "readme", cwd=tmp_path)
    assert (tmp_path / "checkpoints/step-1000/.metadata").is_file()
