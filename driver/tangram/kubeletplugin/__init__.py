"""A DRA kubelet-plugin library that knows no GPU.

Write a `Driver` (prepare, unprepare), give it to a `KubeletPlugin`, and publish what you have with a
`SlicePublisher`. `tests/integration/kubeletplugin/test_toy_driver.py` is a complete driver in fifty lines.
"""
