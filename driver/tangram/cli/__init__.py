"""The `tangram` command."""
