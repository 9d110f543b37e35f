"""A real API server, started for this test alone, still answers as it did when it was recorded."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.cluster.conftest import own_base_port
from tests.conformance import realserver, schema
from tests.conformance.compare import differences
from tests.conformance.questions import load
from tests.conformance.record import OTHER_VERSIONS, VERSION, ask_all, recorded

pytestmark = pytest.mark.cluster

# Beside the ports of the cluster that the other tests here use.
_OFFSET = 50


def test_real_api_server_answers_as_recorded(tmp_path: Path) -> None:
    version = os.environ.get("TANGRAM_CLUSTER_VERSION", VERSION)
    if version not in (VERSION, *OTHER_VERSIONS):
        pytest.skip(f"the answers of {version} are not recorded")
    base_port = int(own_base_port()) + _OFFSET
    with realserver.running(version, base_port=base_port, directory=tmp_path) as server:
        given = asyncio.run(ask_all(server, load()))
        if version == VERSION:
            assert schema.read(server) == schema.PATH.read_text()
    wanted = recorded(version)
    assert given.keys() == wanted.keys()
    found = [
        f"{name} {step}: {'; '.join(different)}"
        for name, answers in given.items()
        for step, pair in enumerate(zip(answers, wanted[name], strict=True))
        if (different := differences(*pair))
    ]
    assert not found, "\n".join(found)
