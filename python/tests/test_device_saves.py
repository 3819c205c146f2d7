"""Saves and loads of CUDA tensors through the bindings, with the stand-in driver of tests/fake_cuda.

torch for the CPU has no CUDA tensors: the tests hand addresses to the engine. test_gpu.py uses the real driver.
"""

import sys
import textwrap
from pathlib import Path

import pytest
import torch
import warm_python

import cairn

DRIVER = Path(cairn.__file__).parents[2] / "tests/fake_cuda/libcuda.so.1"

PRELUDE = """
    import ctypes, os, sys, torch, cairn
    from cairn import _engine
    from cairn._async.async_saver import writer_executable

    driver = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
    driver.fake_cuda_allocate.restype = ctypes.c_uint64
    driver.fake_cuda_make_stream.restype = ctypes.c_void_p
    directory = sys.argv[2]
    source = torch.arange(3_000_000, dtype=torch.float32)
    address = driver.fake_cuda_allocate(1, ctypes.c_size_t(source.nbytes))
    put = lambda tensor: driver.fake_cuda_write(
        ctypes.c_uint64(address), ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes))
    stream = driver.fake_cuda_make_stream(1)
    launch = lambda tensor: driver.fake_cuda_launch_write(
        ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_void_p(tensor.data_ptr()),
        ctypes.c_size_t(tensor.nbytes))
    put(source)
    state = _engine.StateDict()
    state.add_tensor(("w",), address, 0, (1000, 3000), (3000, 1), False, cuda=(1, stream))
    state.add_chunk(("part",), address, 0, (1000, 100), (3000, 1), False, (1000, 200), (0, 0), cuda=(1, stream))
    state.add_chunk(("part",), address + 400, 0, (1000, 100), (3000, 1), False, (1000, 200), (0, 100), cuda=(1, stream))
    options = dict(deadlines=(60.0, 60.0, 60.0), checkpoint_id=directory)

    def expect_saved():
        loaded = {"w": torch.zeros(1000, 3000), "part": torch.zeros(1000, 200)}
        cairn.load(loaded, checkpoint_id=directory, no_dist=True)
        assert torch.equal(loaded["w"], source.view(1000, 3000))
        assert torch.equal(loaded["part"], source.view(1000, 3000)[:, :200])

    def wait(save):
        while save.wait_written(1.0) is None:
            pass
"""


def run(program: str, directory: Path) -> None:
    if not DRIVER.exists():
        pytest.skip("no stand-in driver in an installed package")
    text = textwrap.dedent(PRELUDE) + textwrap.dedent(program)
    command = [sys.executable, "-W", "ignore", "-c", text, str(DRIVER), str(directory)]
    done = warm_python.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_byte_of_a_device_arrives_by_threads_and_by_a_process(tmp_path: Path) -> None:
    program = """
        writer = _engine.WriterProcess(os.fsencode(writer_executable()), 5.0, 0, "")
        for process in (None, writer):
            saver = _engine.AsyncCheckpointer(process, (2, True), 0, None)
            for _ in range(2):
                wait(saver.save(os.fsencode(directory), state, (False, True, state, None), **options))
                expect_saved()
            saver.close()
    """
    run(program, tmp_path / "checkpoint")


def test_a_synchronous_save_reads_the_device(tmp_path: Path) -> None:
    program = """
        put(torch.zeros_like(source))
        launch(source)
        _, _, nbytes, warnings = _engine.save(
            os.fsencode(directory), state, alone_as_rank=0, deadlines=(60.0, 60.0, 60.0))
        assert nbytes > source.nbytes and not warnings
        expect_saved()
    """
    run(program, tmp_path / "checkpoint")


def test_the_fence_holds_back_the_stream(tmp_path: Path) -> None:
    program = """
        saver = _engine.AsyncCheckpointer(None, (2, True), 0, None)
        saver.prepare(state)
        save = saver.save(os.fsencode(directory), state, (True, True, state, None), **options)
        while not save.fence([(0, 0), (1, stream)], 1.0):
            pass
        launch(torch.zeros_like(source))
        driver.fake_cuda_run(ctypes.c_void_p(stream))
        while not save.wait_copied(1.0):
            pass
        save.confirm([])
        while not save.wait_staged(1.0):
            pass
        wait(save)
        expect_saved()
    """
    run(program, tmp_path / "checkpoint")


def test_an_error_of_the_driver_names_key_and_device(tmp_path: Path) -> None:
    program = """
        saver = _engine.AsyncCheckpointer(None, (2, True), 0, None)
        driver.fake_cuda_break(1, 710)
        try:
            saver.save(os.fsencode(directory), state, (False, True, state, None), **options)
        except cairn.Unavailable as error:
            assert error.key == "w" and "cuda:1" in str(error) and "CUDA_ERROR_ASSERT" in str(error), str(error)
        else:
            raise AssertionError("saved")
    """
    run(program, tmp_path / "checkpoint")


def test_a_load_fills_tensors_of_a_device(tmp_path: Path) -> None:
    program = """
        from cairn._directory import open_to_load
        wait(_engine.AsyncCheckpointer(None, (2, True), 0, None).save(
            os.fsencode(directory), state, (False, True, state, None), **options))
        launch(torch.zeros_like(source))
        target = _engine.StateDict()
        target.add_chunk(("w",), address, 0, (1000, 3000), (3000, 1), False, (1000, 3000), (0, 0), cuda=(1, stream))
        open_to_load(os.fsencode(directory)).load(target)
        driver.fake_cuda_run(ctypes.c_void_p(stream))
        found = torch.zeros_like(source)
        driver.fake_cuda_read(
            ctypes.c_uint64(address), ctypes.c_void_p(found.data_ptr()), ctypes.c_size_t(found.nbytes))
        assert torch.equal(found, source)
    """
    run(program, tmp_path / "checkpoint")


def test_tensors_of_the_cpu_are_described_without_cuda() -> None:
    from cairn._state.described import DescribedState

    assert len(DescribedState({"w": torch.ones(3)}, from_devices=True).native) == 1
