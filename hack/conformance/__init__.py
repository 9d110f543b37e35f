"""Tangram's engine beside Kubernetes' own allocator (hack/oracle): generated problems, asked of both.

`problems` makes them (`supply`: nodes, classes, slices; `demand`: claims), `oracle` asks Kubernetes, `engine`
asks Tangram, `compare` says whether two answers agree, `reduce` makes a differing problem small, `run` does
it for many, and `recorded` keeps problems with their answers for machines without Go.
"""
