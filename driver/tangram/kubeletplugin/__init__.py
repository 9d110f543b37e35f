"""A DRA kubelet-plugin library that knows no GPU."""
