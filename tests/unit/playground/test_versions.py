"""`tangram playground --kubernetes`: the versions that the stand-in API server knows."""

import argparse

from tangram.cli import playground
from tangram.testing.apiserver import DEFAULT_VERSION, VERSIONS


def test_the_command_knows_the_versions_of_the_stand_in() -> None:
    parser = argparse.ArgumentParser()
    playground.configure(parser)
    (option,) = [action for action in parser._actions if action.dest == "kubernetes"]
    assert option.choices is not None
    assert set(option.choices) == set(VERSIONS)
    assert option.default == DEFAULT_VERSION
