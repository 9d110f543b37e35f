"""The controller: chooses node and devices of every claim and writes the allocation."""
