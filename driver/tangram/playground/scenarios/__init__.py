"""Scenario files: what is done to a cluster, step by step, and what must then be so.

The same file is played on the playground and on a real cluster; each is a `World`.
"""
