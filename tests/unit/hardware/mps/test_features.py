"""MPS v3 and NVML's memory limits: found where they are, and not pretended."""

import pytest

from tangram.base.errors import HardwareError, NotSupportedError
from tangram.hardware.mps.features import Enforcer, MpsFeatures, choose_enforcer, find_protocols, isolation

V3_HELP = """Usage: nvidia-cuda-mps-control [options]
  -h, --help             Print this message.
  -p, --protocol <2|3>   Protocol 2 (legacy, default) or 3.
"""


@pytest.mark.parametrize(
    ("text", "protocols"),
    [
        (V3_HELP, {2, 3}),
        ("usage: nvidia-cuda-mps-control [-d | -f] [-M] [-v]\n", {2}),
        ("", {2}),
        ("-p 2", {2}),
    ],
)
async def test_protocols_are_read_from_the_help(text: str, protocols: set[int]) -> None:
    asked = []

    async def help_text(arguments: tuple[str, ...]) -> str:
        asked.append(arguments)
        return text

    assert await find_protocols(help_text) == protocols
    assert asked == [("-p", "3", "-h")]


async def test_a_program_that_refuses_the_option_is_of_version_2() -> None:
    async def help_text(_: tuple[str, ...]) -> str:
        raise HardwareError("unknown option -p")

    assert await find_protocols(help_text) == {2}


def test_isolation_says_what_is_enforced() -> None:
    assert isolation("client-environment") == "none"
    assert isolation("mps-namespace") == isolation("memory-cgroup") == "limit"


def test_what_a_driver_could_enforce() -> None:
    assert MpsFeatures().enforcers == ("client-environment",)
    features = MpsFeatures(protocols=frozenset({2, 3}), memory_limits=True)
    assert features.enforcers == ("memory-cgroup", "mps-namespace", "client-environment")


@pytest.mark.parametrize("wanted", ["mps-namespace", "memory-cgroup"])
def test_what_is_not_built_is_refused_by_name(wanted: Enforcer) -> None:
    assert choose_enforcer(MpsFeatures()) == "client-environment"
    with pytest.raises(NotSupportedError, match="this GPU driver has no"):
        choose_enforcer(MpsFeatures(), wanted)
    with pytest.raises(NotSupportedError, match="does not use them yet"):
        choose_enforcer(MpsFeatures(protocols=frozenset({2, 3}), memory_limits=True), wanted)
