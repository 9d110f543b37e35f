"""The engine beside Kubernetes' own allocator of the tested version, built here: problems nobody recorded."""

import os

import pytest

from conformance.run import run
from conformance.versions import version_of

pytestmark = pytest.mark.cluster

SEED = 4711
CASES = 300


def test_the_engine_decides_as_kubernetes_does() -> None:
    kubernetes = os.environ.get("TANGRAM_CLUSTER_VERSION", "1.36.3")
    version = version_of(kubernetes.rpartition(".")[0])
    tally = run(version, seed=SEED, cases=CASES, jobs=2, most_found=1)
    assert [(found.number, found.text) for found in tally.found] == []
    assert len(tally.exhausted) <= CASES / 100
    assert tally.verdicts.total() >= CASES
