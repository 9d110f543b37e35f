"""Generated problems have one answer, however Python hashes: no order of a set or dict of hashes shows."""

import os
import subprocess
import sys

_PROGRAM = """
from conformance import engine
from conformance.problems import numbered
from conformance.versions import VERSIONS

for name in ("1.34", "1.37"):
    for number in range(50):
        for answer in engine.answer(numbered(17, number, VERSIONS[name]), VERSIONS[name]):
            print(answer)
"""


def test_generated_problems_have_one_answer_however_python_hashes() -> None:
    outputs = set()
    for seed in ("1", "2", "3"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    (output,) = outputs
    assert output.count("'allocation': {") > 25
