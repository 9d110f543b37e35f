"""The command hack/bench. See --help and docs/benchmarks.md."""

import argparse
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from benchlib import document, environment
from benchlib.registry import BENCHES, load
from benchlib.results import Result, to_json
from clusterlib.errors import ClusterError
from tangram.base.errors import TangramError

_DESCRIPTION = """\
Measures Tangram on this machine. Each subcommand measures one thing beside a reference in the same run, in
turns with it, and prints a JSON object (kind BenchmarkResult): machine, versions, commit, per series n, p50,
p99, interquartile range, and the goals that were set.

  hack/bench all                         measure everything, rewrite docs/benchmarks.md and .json
  hack/bench document                    rewrite docs/benchmarks.md from docs/benchmarks.json
"""

_EPILOG = """\
Progress goes to standard error, the result to standard output or to --output FILE.

exit codes: 0 measured, goals met; 1 failed; 2 bad usage; 3 measured, and a goal was missed.
"""

_DISTRIBUTIONS = ("grpcio", "protobuf", "aiohttp", "kubernetes", "msgspec")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code."""
    options = _parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    # As Ctrl-C: processes and clusters that were started are ended.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        code: int = options.action(options)
    except (ClusterError, TangramError) as error:
        _show(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("hack/bench: interrupted", file=sys.stderr)
        return 1
    return code


def _show(error: ClusterError | TangramError) -> None:
    if isinstance(error, ClusterError):  # carries its next step
        print(f"hack/bench: {error}", file=sys.stderr)
    else:
        print(f"hack/bench: {error.cause}\n  next: {error.next_step or 'see --help'}", file=sys.stderr)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The subcommand named by `words` gets its flags; the others are not loaded."""
    parser = argparse.ArgumentParser(
        prog="hack/bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, entry in BENCHES.items():
        command = commands.add_parser(
            name, help=entry.help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name in words[:1]:
            load(name).configure(command)
        command.add_argument("--output", type=Path, metavar="FILE", help="write the JSON there")
        command.add_argument(
            "--record", action="store_true", help="also put it into docs/benchmarks.json and .md"
        )
        command.set_defaults(action=_one, bench=name)
    every = commands.add_parser("all", help="measure everything, rewrite docs/benchmarks.md")
    every.add_argument("--base-port", type=int, metavar="P", help="of the real cluster, where one is used")
    every.set_defaults(action=_all)
    written = commands.add_parser("document", help="rewrite docs/benchmarks.md from docs/benchmarks.json")
    written.set_defaults(action=_document)
    return parser


def _one(options: argparse.Namespace) -> int:
    result = measured(options.bench, options)
    if options.record:
        document.record(result)
    if options.output:
        options.output.write_text(to_json(result), encoding="utf-8")
    else:
        print(to_json(result), end="")
    return _judged(result)


def _all(options: argparse.Namespace) -> int:
    """Each that can be measured here; one that fails does not cost the others."""
    failed: list[str] = []
    missed: list[str] = []
    for name, entry in BENCHES.items():
        if not entry.in_all:
            continue
        words = (
            [name, "--base-port", str(options.base_port)] if entry.cluster and options.base_port else [name]
        )
        print(f"== {name}", file=sys.stderr)
        try:
            result = measured(name, _parser(words).parse_args(words))
        except (ClusterError, TangramError) as error:
            _show(error)
            failed.append(name)
            continue
        document.record(result)
        if _judged(result):
            missed.append(name)
    print(f"wrote {document.RESULTS} and {document.DOCUMENT}", file=sys.stderr)
    for what, names in (("not measured", failed), ("goals missed", missed)):
        if names:
            print(f"{what}: {', '.join(names)}", file=sys.stderr)
    return 1 if failed else 3 if missed else 0


def _document(_: argparse.Namespace) -> int:
    document.rewrite()
    print(f"wrote {document.DOCUMENT}", file=sys.stderr)
    return 0


def measured(name: str, options: argparse.Namespace) -> Result:
    """Runs a bench, and notes the circumstances."""
    commit, load_before = environment.commit(), environment.load()
    measured_at, started_s = datetime.now(UTC), monotonic()
    measurement = load(name).measure(options)
    return Result(
        **{field: getattr(measurement, field) for field in measurement.__struct_fields__},
        bench=name,
        commit=commit,
        measured_at=measured_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        duration_seconds=round(monotonic() - started_s, 1),
        machine=environment.machine(load_before=load_before),
        versions=environment.versions(_DISTRIBUTIONS),
    )


def _judged(result: Result) -> int:
    """Says how the goals fared; the exit code."""
    for goal in result.goals:
        mark = "✓" if goal.met else "✗"
        kind = "stretch goal" if goal.stretch else "goal"
        print(f"  {mark} {goal.name}: {goal.value:.3g} {goal.unit} ({kind} {goal.limit:g})", file=sys.stderr)
    return 3 if result.missed else 0


if __name__ == "__main__":
    sys.exit(main())
