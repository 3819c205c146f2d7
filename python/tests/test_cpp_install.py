"""The C++ library as `cmake --install` leaves it, in a folder to which the installation was moved: found by
find_package, with the writer process, and with MPI where the machine has MPI."""

import functools
import re
import shutil
import subprocess
from pathlib import Path

import commands
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"

pytestmark = pytest.mark.slow

LISTS = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(cairn REQUIRED)
add_library(save OBJECT save.cc)
target_link_libraries(save PRIVATE cairn::cairn)
add_executable(direct main.cc $<TARGET_OBJECTS:save>)
target_link_libraries(direct PRIVATE cairn::cairn)
add_library(saving STATIC $<TARGET_OBJECTS:save>)
set_target_properties(saving PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(saving PRIVATE cairn::cairn)
add_executable(indirect main.cc)
target_link_libraries(indirect PRIVATE saving)
add_subdirectory(further)
"""

FURTHER_LISTS = """
find_package(cairn REQUIRED)
add_executable(further ../main.cc $<TARGET_OBJECTS:save>)
target_link_libraries(further PRIVATE cairn::cairn)
"""

MAIN = """
int save_and_load(const char* directory);
int main(int, char** argv) { return save_and_load(argv[1]); }
"""

SAVE = """
#include <cairn/cairn.h>
#include <cairn/value.h>  // an old name (cmake/CairnOldHeaders.cmake)

#include <cstdio>

int save_and_load(const char* directory) try {
  std::vector<float> weights(1000, 2.5F);
  cairn::StateDict state;
  state.add_tensor("w", cairn::TensorView::contiguous(weights.data(), cairn::DType::kFloat32, {1000})).value();
  state.add_value("step", 7).value();
  cairn::AsyncCheckpointerOptions options;
  options.process = cairn::CheckpointProcess::make();
  cairn::AsyncCheckpointer checkpointer(options);
  cairn::AsyncSave save = checkpointer.save(directory, state).value();
  const bool has_process = options.process->pid() > 0;
  save.write.get().value();
  weights.assign(1000, 0);
  cairn::load(directory, state).value();
  const auto step = cairn::read_value<std::int64_t>(directory, "step").value();
  std::printf("%d %g %d\\n", has_process, weights[999], static_cast<int>(step));
  return 0;
} catch (const cairn::Error& error) {
  std::puts(error.what());
  return 1;
}
"""


run = functools.partial(commands.run, timeout=1200)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installation, moved after `cmake --install`."""
    folder = tmp_path_factory.mktemp("installed")
    # `./dev test python` builds less.
    run("cmake", "--build", BUILD, "--target", "cairn", "cairn_writer_process", "cairn_cli", "cairn_manual", cwd=ROOT)
    run("cmake", "--install", BUILD, "--prefix", folder / "first", cwd=ROOT)
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


def test_a_program_of_another_project_saves_with_the_writer_process(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    (tmp_path / "further").mkdir()
    (tmp_path / "further/CMakeLists.txt").write_text(FURTHER_LISTS)
    (tmp_path / "main.cc").write_text(MAIN)
    (tmp_path / "save.cc").write_text(SAVE)
    run("cmake", "-G", "Ninja", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    programs = [tmp_path / "build/direct", tmp_path / "build/indirect", tmp_path / "build/further/further"]
    for program in programs:
        assert run(program, tmp_path / program.name, cwd=tmp_path).strip() == "1 2.5 7"
    assert "step" in run(prefix / "bin/cairn", "ls", tmp_path / "direct", cwd=tmp_path)

    # An installation that is moved after the build of the program is found by the variable, or beside the program.
    direct, writer = programs[0], prefix / "libexec/cairn/cairn-writer"
    elsewhere = writer.rename(tmp_path / "cairn-writer")
    try:
        lost = subprocess.run([direct, tmp_path / "lost"], capture_output=True, text=True, check=False)
        assert lost.returncode == 1
        assert str(writer) in lost.stdout
        assert "CAIRN_WRITER" in lost.stdout
        assert run(direct, tmp_path / "named", cwd=tmp_path, env={"CAIRN_WRITER": str(elsewhere)}).strip() == "1 2.5 7"
        shutil.copy(elsewhere, direct.with_name("cairn-writer"))
        assert run(direct, tmp_path / "beside", cwd=tmp_path).strip() == "1 2.5 7"
    finally:
        elsewhere.rename(writer)


HAS_MPI = shutil.which("mpicxx") is not None and shutil.which("mpiexec") is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="no MPI on this machine")
# Open MPI refuses to start as root, and more ranks than cores, unless told otherwise.
MPI_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


@needs_mpi
def test_the_ranks_of_mpi_save_together(prefix: Path, tmp_path: Path) -> None:
    sources = (Path(__file__).with_name("mpi_ranks.cc"), prefix / "lib/libcairn.a")
    run("mpicxx", "-std=c++20", f"-I{prefix}/include", *sources, "-lisal", "-pthread", "-o", "ranks", cwd=tmp_path)
    output = run("mpiexec", "-n", "3", "./ranks", "checkpoint", cwd=tmp_path, env=MPI_SETTINGS)
    assert output.strip() == "all calls work"


@needs_mpi
def test_four_ranks_of_mpi_save_and_two_load_by_the_example_and_the_lists_of_the_page(
    prefix: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs/guide/cpp.md").read_text()
    (lists,) = re.findall(r'```cmake title="CMakeLists.txt"\n(.*?)```', page, re.DOTALL)
    (tmp_path / "CMakeLists.txt").write_text(lists)
    shutil.copy(ROOT / "examples/05_many_ranks_with_mpi.cc", tmp_path)
    run("cmake", "-G", "Ninja", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    commands_shown = re.findall(r"^mpiexec -n (\d) (build/ranks) (save|load) (checkpoint)$", page, re.MULTILINE)
    assert [(count, task) for count, _, task, _ in commands_shown] == [("4", "save"), ("2", "load")]
    for count, program, task, directory in commands_shown:
        output = run("mpiexec", "-n", count, program, task, directory, cwd=tmp_path, env=MPI_SETTINGS)
        assert f"by {count} ranks" in output
