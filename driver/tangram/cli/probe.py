"""`tangram probe`."""

import argparse
import socket
import sys
from pathlib import Path

from tangram.base.atomicfile import write_atomically
from tangram.base.deadline import within_deadline
from tangram.base.errors import DriverUnavailableError, HardwareTimeoutError, UsageError
from tangram.base.logs import configure_logging
from tangram.cli.machinetext import machine_text
from tangram.cli.main import print_error
from tangram.hardware import recording
from tangram.hardware.machines import MachineDescription, load_machine, machine_file, shipped_machines
from tangram.hardware.simulated import describe_machine
from tangram.model.gpu import Machine

DEADLINE_S = 60.0
"""Without persistence mode the driver takes seconds per GPU to wake it up for the first look."""
_DESCRIPTION = """\
Shows what this machine offers: its GPUs as Tangram would publish them, how NVLink connects them, and the
driver's versions. It only reads, and needs no cluster. With --record it writes a machine description: a file
from which the simulator makes the same machine anywhere (`tangram node run --simulate FILE`), for tests,
demonstrations and reports.
"""
_EPILOG = """\
examples:
  tangram probe                                            a table of this machine's GPUs
  tangram probe --output json                              a MachineDescription, for programs
  tangram probe --record my-node.yaml --anonymize          record it, with made-up UUIDs
  tangram probe --simulate my-node.yaml                    look at what was recorded
  tangram probe --simulate h100-sxm5-80gb-x8               look at a shipped machine
  tangram probe --driver-root /run/nvidia/driver           the driver of the GPU Operator

exit codes:
  0 shown    1 internal error, the driver hangs, or the file could not be written    2 bad input or usage
  3 no GPU or no driver here

a description names products, memory, PCI addresses, NUMA nodes, links, MIG profiles and UUIDs: no serial
numbers, no host name
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the command its texts, flags and action."""
    parser.description = _DESCRIPTION
    parser.epilog = f"shipped machines:\n{_shipped_lines()}\n\n{_EPILOG}"
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="form (default: table)"
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help="write the machine description to this file too (JSON if it ends in .json, else YAML); a file"
        " that is there is replaced, a GPU that does not answer is left out",
    )
    parser.add_argument(
        "--anonymize", action="store_true", help="replace the UUIDs of GPUs and NVLink fabrics, consistently"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--simulate", metavar="NAME|FILE", help="show a shipped machine, or the one of a file, instead"
    )
    source.add_argument(
        "--driver-root",
        metavar="DIR",
        type=Path,
        default=Path("/"),
        help="root of the GPU driver's installation as seen by this process (default: /)",
    )
    parser.set_defaults(command=_run)


def _shipped_lines() -> str:
    names = shipped_machines()
    return "\n".join("  " + ", ".join(names[start : start + 5]) for start in range(0, len(names), 5))


def _run(arguments: argparse.Namespace) -> int:
    configure_logging(level="warning", log_format="console")
    _check_target(arguments.record)
    try:
        description, failures = _find(arguments)
    except DriverUnavailableError as error:
        print_error(error)
        print("      without a GPU: tangram probe --simulate NAME shows a simulated one", file=sys.stderr)
        return 3
    if arguments.anonymize:
        description = recording.anonymize(description)
        failures = [recording.without_uuids(failure) for failure in failures]
    machine = describe_machine(description, node_name=socket.gethostname())
    for failure in [*failures, *_lines(machine.failures)]:
        print(f"warning: a GPU does not answer: {failure}", file=sys.stderr)
    if not machine.gpus:
        version = machine.driver_version or "of unknown version"
        print(f"error: driver {version} is there, but no GPU answers", file=sys.stderr)
        print("next: compare with nvidia-smi, and with the kernel's log (Xid messages)", file=sys.stderr)
        return 3
    text = _as_text(description, arguments.output) or machine_text(machine, description)
    if arguments.record is not None:
        _write(arguments.record, description)
    sys.stdout.write(text)
    return 0


def _find(arguments: argparse.Namespace) -> tuple[MachineDescription, list[str]]:
    """The machine asked for, and which of its GPUs could not be described, and why."""
    if arguments.simulate is not None:
        return load_machine(arguments.simulate), []
    from tangram.hardware.nvml import NvmlBackend  # noqa: PLC0415 - loads pynvml

    def read() -> Machine:
        backend = NvmlBackend(driver_root=arguments.driver_root)
        backend.open()
        try:
            return backend.discover()
        finally:
            backend.close()

    try:
        machine = within_deadline(read, seconds=DEADLINE_S)
    except TimeoutError:
        raise HardwareTimeoutError(
            f"the GPU driver did not answer within {DEADLINE_S:g} s",
            next_step="look at the kernel log for the driver (Xid messages); the node may need a reboot",
        ) from None
    return recording.record(machine), _lines(machine.failures)


def _lines(failures: dict[str, str]) -> list[str]:
    return [f"{label}: {cause}" for label, cause in failures.items()]


def _as_text(description: MachineDescription, form: str) -> str:
    forms = {"json": recording.as_json, "yaml": recording.as_yaml}
    return forms[form](description) if form in forms else ""


def _check_target(file: Path | None) -> None:
    """The recording replaces its target: of a device, pipe or link (/dev/stdout) nothing would be left."""
    if file is not None and (file.is_symlink() or (file.exists() and not file.is_file())):
        raise UsageError(
            f"--record: {file} is not a regular file", next_step="use --output yaml for standard output"
        )


def _write(file: Path, description: MachineDescription) -> None:
    text = _as_text(description, "json" if file.suffix == ".json" else "yaml")
    write_atomically(file, text.encode(), mode=0o644)
    # A bare word would be taken for the name of a shipped machine.
    source = file if machine_file(str(file)) else f"./{file}"
    print(f"recorded: look at it with tangram probe --simulate {source}", file=sys.stderr)
