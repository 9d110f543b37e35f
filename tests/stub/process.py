"""NvmlBackend over the stub library in a process of its own, one for each machine."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tests.stub import nvmlstub

from tangram.hardware.machines import load_machine
from tangram.hardware.simulated import SimulatedBackend
from tangram.model.gpu import Machine
from tangram.model.mig import GpuInstance

REPOSITORY = Path(__file__).parents[2]


class Driver:
    """A process with NvmlBackend over the stub, for one machine; `gpu` is the one that tests work on."""

    def __init__(self, root: Path, library: Path, machine: Machine) -> None:
        nvmlstub.install(root, library, machine)
        self.root = root
        self.gpu = machine.gpus[0]
        self._process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "tests/stub/act.py"), str(root)],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY / "driver")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def call(self, call: str, **arguments: Any) -> dict[str, Any]:
        return self.ask({"call": call, "arguments": {"uuid": self.gpu.uuid, **arguments}})

    def value(self, call: str, **arguments: Any) -> Any:
        answer = self.call(call, **arguments)
        assert "value" in answer, answer
        return answer["value"]

    def stub(self, function: str, *words: str) -> None:
        self.ask({"stub": [function, self.gpu.index, *words]})

    def begin(self) -> None:
        """A GPU nobody has touched yet."""
        self.ask({"call": "close", "arguments": {}})
        self.ask({"call": "open", "arguments": {}})

    def instances(self) -> tuple[GpuInstance, ...]:
        return msgspec.convert(self.value("gpu_instances"), tuple[GpuInstance, ...])

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout
        self._process.stdout.close()


def machine_of(name: str) -> Machine:
    """The machine; MIG mode is on where switching it needs a reset."""
    machine = SimulatedBackend(load_machine(name), node_name="node-1").discover()
    gpus = tuple(
        replace(gpu, mig_mode="enabled" if gpu.compute_capability < (9, 0) else gpu.mig_mode)
        for gpu in machine.gpus
    )
    return replace(machine, gpus=gpus)


def simulated(name: str) -> SimulatedBackend:
    description = load_machine(name)
    (model,) = description.models
    if model.architecture == "Ampere":
        model = msgspec.structs.replace(model, mig_mode="enabled")
    return SimulatedBackend(msgspec.structs.replace(description, models=(model,)), node_name="node-1")
