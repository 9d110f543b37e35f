"""What the commands in hack/ share: lock files, chart rendering, test reports."""
