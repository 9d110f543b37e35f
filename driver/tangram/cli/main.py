"""The command `tangram`: finds the command named on the line and loads only what that one needs."""

import argparse
import difflib
import importlib
import os
import re
import select
import sys
from collections.abc import Sequence
from typing import NoReturn

from tangram import __version__
from tangram.base.errors import TangramError

_COMMANDS: dict[tuple[str, ...], tuple[str, str]] = {
    ("node", "run"): ("tangram.cli.node", "publish this node's GPUs and prepare claims (DaemonSet)"),
    ("node", "status"): (
        "tangram.cli.nodestatus",
        "show this node's GPUs: health, holders, drains",
    ),
    ("node", "doctor"): (
        "tangram.cli.nodedoctor",
        "say what is wrong on this node, and how to mend it",
    ),
    ("node", "drain-gpu"): ("tangram.cli.draingpu", "take a GPU out of allocation, or give it back"),
    ("controller", "run"): ("tangram.cli.controller", "choose node and devices of every claim (Deployment)"),
    ("mps", "run"): ("tangram.cli.mps", "keep the MPS daemons of this node's GPUs (DaemonSet)"),
    ("allocate",): ("tangram.cli.allocate", "answer from files which devices claims would get, and why not"),
    ("why",): ("tangram.cli.why", "say what keeps a pod or a claim from its devices, GPU by GPU"),
    ("probe",): ("tangram.cli.probe", "show this machine's GPUs, and record them for the simulator"),
    ("playground",): ("tangram.cli.playground", "try Tangram in a terminal: no cluster and no GPU needed"),
}
_GROUPS = {
    "node": "one node: its kubelet plugin, and its GPUs",
    "controller": "the allocator of the cluster",
    "mps": "GPUs shared by MPS",
}

_DESCRIPTION = """\
Tangram is a Kubernetes DRA driver for GPUs. A pod asks for a GPU by memory, type or NVLink peers in a
ResourceClaim; the controller chooses the node and the devices that fit best, the node plugin publishes the
GPUs of its node and hands the chosen ones to the containers through CDI.
"""

_EPILOG = """\
examples:
  tangram playground                                       try it: no cluster and no GPU needed
  tangram node run --node-name worker-1                    publish the GPUs of this node
  tangram node run --node-name demo --simulate t4-x4       the same with simulated GPUs: no GPU needed
  tangram node status                                      who holds which GPU of this node, and how they are
  tangram node doctor                                      what is wrong on this node, and how to mend it
  tangram why train-0 -n research                          what keeps a pod from its GPUs, GPU by GPU
  tangram allocate -f cluster.yaml -f pod.yaml             which GPUs a pod would get, from files
  tangram probe                                            show the GPUs of this machine
  tangram controller run --kubeconfig ~/.kube/config       allocate claims from outside the cluster
  tangram node run --node-name worker-1 --print-config     show the settings as they would hold

exit codes:
  0 yes or done    1 internal error or unreachable    2 bad input or usage    3 the answer is no
"""


_CHOICE = re.compile(r"invalid choice: '(?P<word>.*)' \(choose from (?P<known>.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """argparse with errors in the form of every Tangram error: cause and next step."""

    def error(self, message: str) -> NoReturn:
        word, known = "", list(self._option_string_actions)
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0].split("=")[0]
        elif choice := _CHOICE.search(message):
            word, known = choice["word"], re.findall(r"'(.*?)'", choice["known"])
        close = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        self.exit(2, f"error: {message}\nnext: {hint}see {self.prog} --help\n")


def build_parser(words: Sequence[str]) -> Parser:
    """The parser of the whole command line; only the command that `words` begin with gets its flags."""
    parser = Parser(
        prog="tangram",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tangram {__version__}")
    groups = parser.add_subparsers(metavar="command", required=True)
    for path, (_, text) in _COMMANDS.items():
        if len(path) == 1:
            _add_command(groups, path, text, words)
    for group, group_help in _GROUPS.items():
        group_parser = groups.add_parser(group, help=group_help, description=group_help, allow_abbrev=False)
        actions = group_parser.add_subparsers(metavar="action", required=True)
        for path, (_, text) in _COMMANDS.items():
            if path[0] == group:
                _add_command(actions, path, text, words)
    return parser


def _add_command(
    actions: "argparse._SubParsersAction[Parser]", path: tuple[str, ...], text: str, words: Sequence[str]
) -> None:
    command = actions.add_parser(
        path[-1], help=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if tuple(words[: len(path)]) == path:
        module, _ = _COMMANDS[path]
        importlib.import_module(module).configure(command)


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; SystemExit is argparse's for --help and usage errors."""
    words = sys.argv[1:] if words is None else words
    if sys.stdout is None:  # closed by who started us
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process runs
    parser = build_parser(words)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        _command_parser(parser, words).error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
    except TangramError as error:
        print_error(error)
        return error.exit_code
    except BrokenPipeError:
        if not _unread(sys.stdout.fileno()):
            raise  # some other connection
        # Who read the output has left, as `head` does. What is still buffered must not fail at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _unread(output: int) -> bool:
    """Whether nobody is at the other end."""
    poll = select.poll()
    poll.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _command_parser(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command that the words name: it knows the flags to suggest."""
    for word in words[:2]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
    return parser


def print_error(error: TangramError) -> None:
    """Cause and next step on standard error."""
    print(f"error: {error.cause}", file=sys.stderr)
    if error.next_step:
        print(f"next: {error.next_step}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
