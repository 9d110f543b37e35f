"""A fake API server and a client of it, through real HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tangram.kube.client import Client
from tangram.testing.apiserver import FakeApiServer


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    connected = await Client.connect(
        kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"), user_agent="tangram-test/1.0"
    )
    yield connected
    await connected.close()
