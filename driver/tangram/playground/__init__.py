"""A cluster to try Tangram in, without Kubernetes and without a GPU.

The API server, the kubelets and the parts of Kubernetes that a pod with claims needs are stand-ins in this
process; controller and node plugins are the real ones, as processes of their own, on simulated machines.
"""
