"""Everything that touches a GPU, real or simulated."""
