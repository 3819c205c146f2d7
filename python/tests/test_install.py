"""Installation as by a user: `pip install .` into a fresh environment."""

import os
import re
import shutil
import subprocess
import sys
from email.parser import Parser
from pathlib import Path

import pytest
from commands import run

ROOT = Path(__file__).resolve().parents[2]
VERSION = (ROOT / "include/cairn/version.h").read_text().split('kVersion = "')[1].split('"')[0]
OFFLINE = os.environ.get("CAIRN_OFFLINE") == "1"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a clone, with local edits and without build outputs."""
    target = tmp_path_factory.mktemp("clone") / "cairn"
    for name in run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def foreign(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds only `pip install .`."""
    home = tmp_path_factory.mktemp("foreign")
    run(sys.executable, "-m", "venv", home, cwd=home)
    # ccache reuses the objects of the release build: equal sources, compiler and flags, and a folder of equal depth.
    environment = {
        "CCACHE_BASEDIR": str(clone),
        "CCACHE_NOHASHDIR": "1",
        "CXX": "c++",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count()),
    }
    settings = ["build-dir=build/wheel", "cmake.define.CAIRN_WARNINGS_ARE_ERRORS=ON"]
    pip = [home / "bin/pip", "install", "--disable-pip-version-check"]
    run(*pip, *(f"--config-settings={setting}" for setting in settings), ".", cwd=clone, env=environment)
    return home / "bin"


@pytest.mark.skipif(OFFLINE, reason="needs PyPI, and CAIRN_OFFLINE=1")
class TestPipInstall:
    def test_the_package_imports_without_torch(self, foreign: Path, tmp_path: Path) -> None:
        program = (
            "import sys, cairn\n"
            "assert 'torch' not in sys.modules\n"
            "assert sys.prefix in cairn.__file__, cairn.__file__\n"
            "print(cairn.__version__)\n"
        )
        assert run(foreign / "python", "-c", program, cwd=tmp_path).strip() == VERSION

    def test_the_tool_runs(self, foreign: Path, tmp_path: Path) -> None:
        assert VERSION in run(foreign / "cairn", "--version", cwd=tmp_path)

    def test_the_extension_serves_every_python_and_links_no_torch(self, foreign: Path, tmp_path: Path) -> None:
        program = "import cairn._engine; print(cairn._engine.__file__)"
        extension = Path(run(foreign / "python", "-c", program, cwd=tmp_path).strip())
        assert extension.name == "_engine.abi3.so"
        linked = run("ldd", extension, cwd=tmp_path)
        assert "libstdc++" in linked
        assert not any(name in linked for name in ("torch", "libpython", "libcuda"))

    def test_the_wheel_is_tagged_for_every_python_from_3_10(self, foreign: Path) -> None:
        (tags,) = foreign.parent.glob(f"lib/python3.*/site-packages/cairn_checkpoint-{VERSION}.dist-info/WHEEL")
        assert "Tag: cp310-abi3-" in tags.read_text()

    def test_the_package_metadata_for_pypi(self, foreign: Path) -> None:
        (info,) = foreign.parent.glob(f"lib/python3.*/site-packages/cairn_checkpoint-{VERSION}.dist-info")
        metadata = Parser().parsestr((info / "METADATA").read_text())
        assert (metadata["Name"], metadata["Version"]) == ("cairn-checkpoint", VERSION)
        assert metadata["License-Expression"] == "BSD-3-Clause"
        assert {path.name for path in (info / "licenses").iterdir()} == {"LICENSE", "LICENSE-THIRD-PARTY"}
        urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
        assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} <= set(urls)
        for python in ("3.10", "3.11", "3.12", "3.13"):
            assert f"Programming Language :: Python :: {python}" in metadata.get_all("Classifier", [])
        readme = str(metadata.get_payload())
        links = re.findall(r"\]\(([^)]+)\)", readme) + re.findall(r'(?:src|srcset)="([^"]+)"', readme)
        assert links
        assert all(link.startswith(("https://", "#")) for link in links), "PyPI shows the README without its neighbours"
        beside = [link for link in links if link.startswith(urls["Repository"])]
        for link in beside:
            assert (
                ROOT / re.sub(r"^(blob|raw)/main/|#.*", "", link.removeprefix(urls["Repository"] + "/"))
            ).exists(), link

    def test_the_build_leaves_the_clone_unchanged(self, clone: Path, foreign: Path) -> None:
        assert foreign.is_dir()
        left = {path.relative_to(clone).parts[0] for path in clone.rglob("*") if path.is_file()}
        tracked = {
            name.split("/")[0] for name in run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).split("\n")
        }
        assert left - tracked <= {"build"}


def test_a_source_distribution_has_the_files_of_a_build(clone: Path, tmp_path: Path) -> None:
    program = f"import scikit_build_core.build as build; print(build.build_sdist({str(tmp_path)!r}))"
    run(sys.executable, "-c", program, cwd=clone)
    archive = tmp_path / f"cairn_checkpoint-{VERSION}.tar.gz"
    names = run("tar", "-tzf", archive, cwd=tmp_path)
    for needed in (
        "CMakeLists.txt",
        "include/cairn/cairn.h",
        "src/core/error.cc",
        "python/cairn/__init__.py",
        "LICENSE",
        "LICENSE-THIRD-PARTY",
    ):
        assert f"cairn_checkpoint-{VERSION}/{needed}\n" in names


class TestConfigure:
    """`cmake` as `pip install` runs the configuration on a user's machine, without the presets."""

    def configure(self, folder: Path, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        ninja = shutil.which("ninja")
        python = [f"-DPython_EXECUTABLE={sys.executable}", "-DCAIRN_BUILD_PYTHON=ON", "-DCAIRN_BUILD_TESTS=OFF"]
        command = [shutil.which("cmake") or "cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *python, *options]
        return subprocess.run(
            [*command, "-S", ROOT, "-B", folder],
            capture_output=True,
            text=True,
            check=False,
            env={**{name: value for name, value in os.environ.items() if name != "CXX"}, **variables},
        )

    def test_a_warning_is_no_error(self, tmp_path: Path) -> None:
        done = self.configure(tmp_path, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
        assert done.returncode == 0, done.stderr
        commands = (tmp_path / "compile_commands.json").read_text()
        assert "-Wall" in commands
        assert "-Werror" not in commands

    def test_the_code_is_for_every_processor_of_its_architecture(self, tmp_path: Path) -> None:
        done = self.configure(tmp_path)
        assert done.returncode == 0, done.stderr
        assert not re.findall(r" -m(?:arch|cpu|tune|avx|sse)\S*", (tmp_path / "compile_commands.json").read_text())

    def test_all_that_is_missing_is_named_at_once(self, tmp_path: Path) -> None:
        empty = tmp_path / "bin"
        empty.mkdir()
        done = self.configure(tmp_path / "build", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", PATH=str(empty))
        assert done.returncode != 0
        assert done.stderr.count("CMake Error") == 1, done.stderr
        assert "apt-get install g++ libisal-dev libfmt-dev libcli11-dev\n" in done.stderr

    def test_only_missing_packages_are_named(self, tmp_path: Path) -> None:
        done = self.configure(tmp_path, "-DCMAKE_IGNORE_PATH=/usr/include")
        assert done.returncode != 0
        assert "apt-get install libisal-dev libfmt-dev libcli11-dev\n" in done.stderr
