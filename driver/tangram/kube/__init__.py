"""Talking to the Kubernetes API: client, reflector, work queue, Lease election, events."""
