"""Frozen values of the domain: GPUs, links, device names, quantities. No I/O."""
