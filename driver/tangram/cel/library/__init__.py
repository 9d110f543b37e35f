"""The functions of the environment, one module per library."""
