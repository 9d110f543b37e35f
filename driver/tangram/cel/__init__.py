"""The CEL environment of Dynamic Resource Allocation."""
