"""Numbers on the command line."""

import argparse


def positive(text: str) -> int:
    """A number above 0, as a type for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
