import pytest

from tangram.base.errors import ApiError
from tangram.testing.apiserver.selectors import selector

OBJECT = {
    "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "a", "tier": "web"}},
    "spec": {"nodeName": "n1"},
}


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
    assert selector(labels=labels, fields="")(OBJECT) is matches


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ("metadata.name=p", True),
        ("metadata.name=p,metadata.namespace!=ns", False),
        ("spec.nodeName=n1", True),
        ("spec.nodeName=", False),
        ("spec.driver=", True),
    ],
)
def test_fields(fields: str, matches: bool) -> None:
    assert selector(labels="", fields=fields)(OBJECT) is matches


@pytest.mark.parametrize(("labels", "fields"), [("", "spec.other=x"), ("", "metadata.name"), ("a=b=c", "")])
def test_what_cannot_be_parsed_is_a_bad_request(labels: str, fields: str) -> None:
    with pytest.raises(ApiError) as caught:
        selector(labels=labels, fields=fields)
    assert caught.value.status == 400
