"""The node plugin: publishes this node's GPUs and prepares claims."""
