"""Real Kubernetes clusters on one Linux machine, for tests and for trying things out: docs/cluster.md."""
