"""Run in a process of its own: carries out calls of NvmlBackend below a driver root, one JSON line each.

Usage: act.py DRIVER_ROOT. A request is `{"call": …, "arguments": {…}}`, or `{"stub": [function, …]}` for what
the stub library itself offers (`stub_add`, `stub_remove`). Answers: `{"value": …}`, `{"error": [kind, …]}`.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from tangram.base.errors import HardwareError
from tangram.base.logs import configure_logging
from tangram.hardware.nvml import NvmlBackend
from tangram.model.gpu import Gpu
from tangram.model.mig import MigPlacement

CONVERTED: dict[str, Callable[[Any], Any]] = {
    "placement": lambda value: MigPlacement(*value),
    "gpu": lambda value: msgspec.convert(value, Gpu),
}


def main() -> None:
    """Answers until its input ends."""
    configure_logging(level="error", log_format="json")
    root = Path(sys.argv[1])
    backend = NvmlBackend(driver_root=root, proc_root=root / "proc", sysfs_root=root / "sys")
    for line in sys.stdin:
        request = json.loads(line)
        if "stub" in request:
            stub(*request["stub"])
            answer: dict[str, Any] = {"value": None}
        else:
            answer = act(backend, request["call"], request["arguments"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def stub(function: str, index: int, *words: str) -> None:
    """Calls the library of the stub, past pynvml."""
    getattr(pynvml.nvmlLib, function)(ctypes.c_int(index), *(word.encode() for word in words))


def act(backend: NvmlBackend, call: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One call."""
    converted = {key: CONVERTED.get(key, lambda value: value)(value) for key, value in arguments.items()}
    uuid = converted.pop("uuid", None)
    positional = (uuid,) if uuid else ()
    if call == "set_compute_mode":
        positional = (*positional, converted.pop("mode"))
    if "gpu" in converted:
        positional = (converted.pop("gpu"),)
    try:
        return {"value": msgspec.to_builtins(getattr(backend, call)(*positional, **converted))}
    except HardwareError as error:
        return {"error": [type(error).__name__, error.cause]}


if __name__ == "__main__":
    main()
