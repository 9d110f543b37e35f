"""docs/benchmarks.md: its prose stands here and in the benches, its figures are in docs/benchmarks.json."""

from benchlib.benches.tables import prose
from benchlib.environment import REPOSITORY
from benchlib.registry import BENCHES, load
from benchlib.results import Result, Results, read_results, to_json

RESULTS = REPOSITORY / "docs" / "benchmarks.json"
DOCUMENT = REPOSITORY / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

`./hack/bench all` measures and rewrites this page; `./hack/bench --help` says what else it can. Every figure
comes from [benchmarks.json](benchmarks.json), which that command writes. Each measurement runs beside a
reference, in turns with it, so that a ratio holds also where the machine is slow or busy.
"""


def record(result: Result) -> None:
    """Puts a result into docs/benchmarks.json and rewrites docs/benchmarks.md."""
    _write(read_results(RESULTS).with_(result))


def rewrite() -> None:
    """Writes docs/benchmarks.md from docs/benchmarks.json."""
    _write(read_results(RESULTS))


def _write(results: Results) -> None:
    RESULTS.write_text(to_json(results), encoding="utf-8")
    DOCUMENT.write_text(document(results), encoding="utf-8")


def document(results: Results) -> str:
    """The whole page. Pure but for loading the benches."""
    parts = [_INTRODUCTION.rstrip("\n")]
    for name in BENCHES:
        if of := results.of(name):
            parts += [load(name).section(of), *(circumstances(result) for result in of.values())]
    return "\n\n".join(parts) + "\n"


def circumstances(result: Result) -> str:
    """When, where and with what."""
    machine = result.machine
    before, after = machine.load
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    label = f"{result.variant}: " if result.variant else ""
    return prose(
        f"<sub>{label}{result.measured_at}, commit {result.commit}, {machine.cpus} CPUs ({machine.cpu}), "
        f"{machine.memory_bytes / 2**30:.0f} GiB, {machine.os}, Linux {machine.kernel}; {versions}; "
        f"load {before:.1f} before, {after:.1f} after; took {result.duration_seconds:.0f} s.</sub>"
    )
