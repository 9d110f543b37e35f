import pytest

from tangram.base.errors import ApiError
from tangram.kube.resources import PODS, RESOURCE_SLICES, Resource
from tangram.testing.apiserver.catalog import DEFAULT_VERSION, VERSIONS
from tangram.testing.apiserver.selectors import Predicate, selector

OBJECT = {
    "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "a", "tier": "web"}},
    "spec": {"nodeName": "n1"},
}


def select(
    *, labels: str = "", fields: str = "", resource: Resource = PODS, version: str = DEFAULT_VERSION
) -> Predicate:
    return selector(labels=labels, fields=fields, resource=resource, version=VERSIONS[version])


@pytest.mark.parametrize(
    ("labels", "matches"),
    [
        ("", True),
        ("app=a", True),
        ("app==a,tier=web", True),
        ("app=b", False),
        ("app!=b", True),
        ("none!=b", True),
        ("app", True),
        ("none", False),
        ("!none", True),
        ("!app", False),
        ("app in (a, b),tier notin (db)", True),
        ("app in (b,c)", False),
        ("none notin (x)", True),
    ],
)
def test_labels(labels: str, matches: bool) -> None:
    assert select(labels=labels)(OBJECT) is matches


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ("metadata.name=p", True),
        ("metadata.name=p,metadata.namespace!=ns", False),
        ("spec.nodeName=n1", True),
        ("spec.nodeName=", False),
        ("status.phase=", True),
    ],
)
def test_fields(fields: str, matches: bool) -> None:
    assert select(fields=fields)(OBJECT) is matches


@pytest.mark.parametrize(("pool", "matches"), [("a", True), ("b", False)])
def test_slices_are_selected_by_pool_since_1_37(pool: str, matches: bool) -> None:
    fields, published = f"spec.pool.name={pool}", {"metadata": {}, "spec": {"pool": {"name": "a"}}}
    assert select(fields=fields, resource=RESOURCE_SLICES, version="1.37")(published) is matches
    for version in ("1.34", "1.36"):
        with pytest.raises(ApiError, match="not supported"):
            select(fields=fields, resource=RESOURCE_SLICES, version=version)


@pytest.mark.parametrize(("labels", "fields"), [("", "spec.driver=x"), ("", "metadata.name"), ("a=b=c", "")])
def test_what_cannot_be_parsed_is_a_bad_request(labels: str, fields: str) -> None:
    with pytest.raises(ApiError) as caught:
        select(labels=labels, fields=fields)
    assert caught.value.status == 400
