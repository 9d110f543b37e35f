"""The change that the body of a PATCH makes, by its media type."""

from typing import Any

from tangram.testing.apiserver import patches
from tangram.testing.apiserver.answers import bad_request, unsupported_media_type
from tangram.testing.apiserver.registry import Mutation

APPLY = "application/apply-patch+yaml"
JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def mutation_of(patch: Any, content_type: str, *, kind: str) -> Mutation:
    """Of an object of a kind; 400 for a patch of the wrong form, 415 for a format there is not."""
    if content_type == JSON:
        if not isinstance(patch, list):
            raise bad_request("error decoding patch: a JSON patch is a list of operations")
        return lambda old: patches.json_patch(old, patch)
    if content_type not in {MERGE, STRATEGIC}:
        raise unsupported_media_type("415: Unsupported Media Type")
    if not isinstance(patch, dict):
        raise bad_request("json: cannot unmarshal the patch into Go value of type map[string]interface {}")
    if content_type == MERGE:
        return lambda old: patches.merge_patch(old, patch)
    return lambda old: patches.strategic_patch(kind, old, patch)
