"""Claims made from a pod's templates, known by their owner before the pod's status names them.

The resource-claim controller first creates such a claim, owned by the pod and annotated with the entry of the
pod that it is for, then writes its name into the pod's status; if it is interrupted in between, it finds the
claim again by just these two. Who reads them as well decides one write earlier.
"""

from collections.abc import Mapping

from tangram.kube.decoding import ObjectKey
from tangram.kube.objects import ResourceClaim

_ENTRY = "resource.kubernetes.io/pod-claim-name"


class GeneratedClaims:
    """By owner; claims that a user owns are not in it."""

    def __init__(self) -> None:
        self._of_pod: dict[str, dict[str, set[str]]] = {}
        self._owners: dict[ObjectKey, tuple[str, str, str]] = {}

    def update(self, key: ObjectKey, claim: ResourceClaim | None) -> None:
        """Takes a claim as it is now; None if it is gone."""
        pod, uid, entry = owner = _owner(claim)
        before = self._owners.get(key, ("", "", ""))
        if owner == before:
            return
        if before[0]:
            entries = self._of_pod[before[1]]
            entries[before[2]].discard(key.name)
            if not any(entries.values()):
                del self._of_pod[before[1]]
            del self._owners[key]
        if pod:
            self._of_pod.setdefault(uid, {}).setdefault(entry, set()).add(key.name)
            self._owners[key] = owner

    def owner(self, key: ObjectKey) -> tuple[ObjectKey, str, str] | None:
        """The pod that a claim was made for, its uid, and its entry."""
        found = self._owners.get(key)
        return (ObjectKey(key.namespace, found[0]), *found[1:]) if found else None

    def of_pod(self, uid: str) -> Mapping[str, str]:
        """Entry of the pod → name of its claim, where there is no doubt."""
        entries = self._of_pod.get(uid, {})
        return {entry: next(iter(names)) for entry, names in entries.items() if len(names) == 1}


def _owner(claim: ResourceClaim | None) -> tuple[str, str, str]:
    """Name and uid of the pod, and its entry; empty if the claim was not made for a pod."""
    if claim is not None and (entry := (claim.metadata.annotations or {}).get(_ENTRY)):
        for owner in claim.metadata.owner_references or ():
            if owner.controller and (owner.api_version, owner.kind) == ("v1", "Pod"):
                return owner.name, owner.uid, entry
    return "", "", ""
