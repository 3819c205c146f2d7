"""Saves of tensors on CUDA devices, with the real driver. `./dev gpu` packs these tests for a machine with
a GPU."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import cairn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: ./dev gpu")

State = dict[str, Any]
Save = Callable[[State, Path], Any]


def overlapped() -> DefaultStager:
    return DefaultStager(StagingOptions(False, False, True, False))


def save_with_threads(state: State, directory: Path) -> Any:
    return cairn.async_save(state, checkpoint_id=directory).result()


def save_with_a_process(state: State, directory: Path) -> Any:
    kind = AsyncCheckpointerType.PROCESS
    return cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind).result()


def save_overlapped(state: State, directory: Path) -> Any:
    return cairn.async_save(state, checkpoint_id=directory, async_stager=overlapped()).upload_completion.result()


def save_blocking(state: State, directory: Path) -> Any:
    return cairn.save(state, checkpoint_id=directory, no_dist=True)


SAVES = [save_with_threads, save_with_a_process, save_overlapped, save_blocking]


def bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().flatten().contiguous()
    return plain.view(torch.uint8).numpy().tobytes()


def mixed_state() -> State:
    torch.manual_seed(1)
    matrix = torch.randn(700, 513, device="cuda")
    state: State = {
        "large": torch.randn(20_000_003, device="cuda"),
        "columns": matrix[:, 100:300],
        "narrow": matrix[:, 7:9],
        "transposed": matrix.t(),
        "expanded": matrix[0].expand(5, 513),
        "parameter": torch.nn.Parameter(torch.randn(33, 65, device="cuda")),
        "number": torch.tensor(3.5, device="cuda", dtype=torch.float64),
        "empty": torch.empty(0, 4, device="cuda"),
        "conjugate": torch.randn(50, 60, device="cuda", dtype=torch.complex64).conj(),
        "of_cpu": torch.randn(1001),
        "pinned": torch.randn(1001).pin_memory(),
        "step": 7,
        "nested": {"list": [torch.arange(9, device="cuda"), {"flag": torch.tensor(True, device="cuda")}]},
    }
    for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.float8_e4m3fn):
        state[str(dtype).removeprefix("torch.")] = torch.randint(0, 2, (123, 45), device="cuda").to(dtype)
    return state


def tensors_of(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in torch.distributed.checkpoint._nested_dict.flatten_state_dict(state)[0].items():
        if isinstance(value, torch.Tensor):
            yield key, value


def expect_saved(state: dict[str, bytes], like: State, directory: Path) -> None:
    """Loads the checkpoint with stock torch on the CPU, and with cairn on the devices, and compares every byte."""
    flat = dict(tensors_of(like))
    on_cpu = {key: torch.full_like(value, 1, device="cpu").contiguous() for key, value in flat.items()}
    dcp.load(on_cpu, checkpoint_id=directory, no_dist=True)
    on_device = {key: torch.full_like(value, 1).contiguous() for key, value in flat.items()}
    cairn.load(on_device, checkpoint_id=directory, no_dist=True)
    assert {key: bytes_of(value) for key, value in on_cpu.items()} == state
    assert {key: bytes_of(value) for key, value in on_device.items()} == state


@pytest.mark.parametrize("save", SAVES)
def test_every_byte_arrives(checkpoint: Path, save: Save) -> None:
    state = mixed_state()
    expected = {key: bytes_of(value) for key, value in tensors_of(state)}
    for _ in range(3):  # first into new memory, then into memory that is being registered
        save(state, checkpoint)
        expect_saved(expected, state, checkpoint)


def test_a_prepared_saver_saves_every_byte(checkpoint: Path) -> None:
    state = mixed_state()
    expected = {key: bytes_of(value) for key, value in tensors_of(state)}
    with cairn.AsyncSaver(process=False) as saver:
        saver.prepare(state).result()
        saver.save(state, checkpoint).upload.result()
    expect_saved(expected, state, checkpoint)


def test_ten_thousand_small_tensors(checkpoint: Path) -> None:
    state = {f"t{i}": torch.full((i % 50 + 1,), float(i), device="cuda") for i in range(10_000)}
    expected = {key: bytes_of(value) for key, value in state.items()}
    for save in (save_with_threads, save_overlapped):
        save(state, checkpoint)
        expect_saved(expected, state, checkpoint)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_after_the_fence_an_optimizer_step_does_not_change_the_save(checkpoint: Path, is_prepared: bool) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False, device="cuda") for _ in range(16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    fence = cairn.staging_fence(optimizer)
    if is_prepared:
        cairn.prepare_async_saves(model.state_dict()).result()
    for step in range(4):
        expected = {key: bytes_of(value) for key, value in model.state_dict().items()}
        response = cairn.async_save(model.state_dict(), checkpoint_id=checkpoint, async_stager=overlapped())
        model(torch.ones(8, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        response.upload_completion.result()
        expect_saved(expected, model.state_dict(), checkpoint)
        assert step == 3 or expected != {key: bytes_of(value) for key, value in model.state_dict().items()}
    fence.remove()


def test_synchronize_staging_holds_back_the_stream(checkpoint: Path) -> None:
    state = {"w": torch.randn(100_000_000, device="cuda")}
    expected = {key: bytes_of(value) for key, value in state.items()}
    stager = overlapped()
    response = cairn.async_save(state, checkpoint_id=checkpoint, async_stager=stager)
    stager.synchronize_staging()
    state["w"].zero_()
    response.upload_completion.result()
    expect_saved(expected, state, checkpoint)


def test_a_write_without_the_fence_is_detected(checkpoint: Path) -> None:
    state = {"w": torch.randn(500_000_000, device="cuda"), "other": torch.ones(10, device="cuda")}
    torch.cuda.synchronize()
    response = cairn.async_save(state, checkpoint_id=checkpoint, async_stager=overlapped())
    torch.cuda._sleep(2_000_000)  # a millisecond, in which the samples are copied
    state["w"].add_(1)
    with pytest.raises(Exception, match="'w'"):
        response.upload_completion.result()


def test_tensors_may_be_dropped_during_staging(checkpoint: Path) -> None:
    state = {f"w{i}": torch.randn(20_000_000, device="cuda") for i in range(10)}
    expected = {key: bytes_of(value) for key, value in state.items()}
    like = {key: torch.empty(20_000_000) for key in state}
    response = cairn.async_save(state, checkpoint_id=checkpoint, async_stager=overlapped())
    state.clear()
    for _ in range(10):  # would take the memory of dropped tensors
        torch.full((20_000_000,), 3.0, device="cuda")
    response.upload_completion.result()
    expect_saved(expected, like, checkpoint)


def test_the_current_stream_is_waited_for(checkpoint: Path) -> None:
    stream = torch.cuda.Stream()
    state = {"w": torch.zeros(50_000_000, device="cuda")}
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        state["w"].add_(5)
        future = cairn.async_save(state, checkpoint_id=checkpoint)
    future.result()
    expect_saved({"w": bytes_of(torch.full((50_000_000,), 5.0))}, state, checkpoint)


def test_a_save_during_a_capture_fails_and_the_graph_survives(checkpoint: Path) -> None:
    state = {"w": torch.ones(1000, device="cuda")}
    save_with_threads(state, checkpoint)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        state["w"].add_(1)
        with pytest.raises(Exception, match="captured into a CUDA graph"):
            cairn.async_save(state, checkpoint_id=checkpoint)
    graph.replay()
    torch.cuda.synchronize()
    save_with_threads(state, checkpoint)
    expect_saved({"w": bytes_of(torch.full((1000,), 2.0))}, state, checkpoint)


def test_a_save_beside_the_capture_of_another_thread_leaves_the_graph_intact(checkpoint: Path) -> None:
    state = {"w": torch.randn(30_000_000, device="cuda")}
    expected = {key: bytes_of(value) for key, value in state.items()}
    with cairn.AsyncSaver(process=False) as saver:
        save = saver.save(state, checkpoint, asynchronous_staging=True)
        other = torch.ones(100, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(200):
                other.add_(1)
            save.staging.result()
        graph.replay()
        torch.cuda.synchronize()
        assert other[0].item() == 201
        save.upload.result()
    expect_saved(expected, state, checkpoint)


def test_a_fork_after_registration_is_harmless(checkpoint: Path) -> None:
    state = mixed_state()
    expected = {key: bytes_of(value) for key, value in tensors_of(state)}
    with cairn.AsyncSaver(process=False) as saver:
        saver.prepare(state).result()
        saver.save(state, checkpoint).upload.result()
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        saver.save(state, checkpoint).upload.result()
    expect_saved(expected, state, checkpoint)


def run_program(program: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        check=False,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_error_of_a_kernel_is_an_error_of_the_save(tmp_path: Path) -> None:
    program = """
        import sys, torch, cairn
        state = {"w": torch.ones(1 << 20, device="cuda")}
        cairn.async_save(state, checkpoint_id=sys.argv[1] + "/first").result()
        state["w"][torch.tensor([1 << 40], device="cuda")] = 1.0
        try:
            torch.cuda.synchronize()
        except Exception:
            pass
        try:
            cairn.async_save(state, checkpoint_id=sys.argv[1] + "/second").result()
        except cairn.Error as error:
            assert error.key == "w" and "cuda:0" in str(error) and "CUDA_ERROR" in str(error), str(error)
            print("refused")
    """
    assert "refused" in run_program(program, tmp_path)
    loaded = {"w": torch.zeros(1 << 20)}
    dcp.load(loaded, checkpoint_id=tmp_path / "first", no_dist=True)
    assert bool((loaded["w"] == 1).all())


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync", "backend:native"])
def test_memory_of_every_allocator(tmp_path: Path, allocator: str) -> None:
    program = """
        import sys, torch, cairn
        import torch.distributed.checkpoint as dcp
        state = {f"w{i}": torch.randn(3_000_000 + i, device="cuda") for i in range(20)}
        for kind in range(2):
            cairn.async_save(state, checkpoint_id=sys.argv[1]).result()
        loaded = {key: torch.zeros(value.shape) for key, value in state.items()}
        dcp.load(loaded, checkpoint_id=sys.argv[1], no_dist=True)
        assert all(torch.equal(loaded[key], state[key].cpu()) for key in state)
    """
    run_program(program, tmp_path / "checkpoint", PYTORCH_CUDA_ALLOC_CONF=allocator, PYTORCH_ALLOC_CONF=allocator)


def test_shards_of_a_dtensor(tmp_path: Path) -> None:
    program = """
        import sys, torch, cairn, torch.distributed as dist
        from torch.distributed.tensor import Shard, distribute_tensor
        import torch.distributed.checkpoint as dcp
        store = dist.FileStore(sys.argv[1] + ".store", 1)
        dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
        mesh = dist.init_device_mesh("cuda", (1,))
        whole = torch.randn(512, 300, device="cuda")
        rows, columns = (distribute_tensor(whole, mesh, [Shard(dim)]) for dim in range(2))
        state = {"rows": rows, "columns": columns}
        cairn.async_save(state, checkpoint_id=sys.argv[1]).result()
        loaded = {key: torch.zeros(512, 300) for key in state}
        dcp.load(loaded, checkpoint_id=sys.argv[1], no_dist=True)
        assert all(torch.equal(value, whole.cpu()) for value in loaded.values())
        dist.destroy_process_group()
    """
    run_program(program, tmp_path / "checkpoint")


def test_saves_of_several_threads_and_streams(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()), cairn.AsyncSaver(process=False) as saver:
                for step in range(3):
                    state = {"w": torch.full((5_000_000,), float(number * 10 + step), device="cuda")}
                    expected = {"w": bytes_of(state["w"])}
                    saver.save(state, tmp_path / f"{number}-{step}").upload.result()
                    loaded = {"w": torch.zeros(5_000_000)}
                    dcp.load(loaded, checkpoint_id=tmp_path / f"{number}-{step}", no_dist=True)
                    assert {"w": bytes_of(loaded["w"])} == expected
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
