"""The whole table of permissions: a wider one must be written here too, and so be seen."""

from typing import Any

from .conftest import Rendered

Rules = set[tuple[str, str, str, str]]

NODE: Rules = {
    ("resource.k8s.io", "resourceclaims", "", "get"),
    ("resource.k8s.io", "resourceclaims/status", "", "patch"),
    ("resource.k8s.io", "resourceclaims/driver", "gpu.resource.admin", "associated-node:patch"),
    *(
        ("resource.k8s.io", "resourceslices", "", verb)
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    ("", "nodes", "", "get"),
    ("events.k8s.io", "events", "", "create"),
    ("events.k8s.io", "events", "", "patch"),
}

CONTROLLER: Rules = {
    *(("resource.k8s.io", "resourceclaims", "", verb) for verb in ("get", "list", "watch", "patch")),
    ("resource.k8s.io", "resourceclaims/status", "", "patch"),
    ("resource.k8s.io", "resourceclaims/binding", "", "patch"),
    *(
        (group, resource, "", verb)
        for group, resource in (
            ("resource.k8s.io", "resourceslices"),
            ("resource.k8s.io", "deviceclasses"),
            ("", "nodes"),
            ("", "pods"),
        )
        for verb in ("get", "list", "watch")
    ),
    ("events.k8s.io", "events", "", "create"),
    ("events.k8s.io", "events", "", "patch"),
}

CONTROLLER_IN_ITS_NAMESPACE: Rules = {
    ("coordination.k8s.io", "leases", "", "create"),
    ("coordination.k8s.io", "leases", "tangram-controller", "get"),
    ("coordination.k8s.io", "leases", "tangram-controller", "patch"),
}


def _rules(role: dict[str, Any]) -> Rules:
    """One (group, resource, name or empty, verb) per permission."""
    return {
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def test_node_permissions(rendered: Rendered) -> None:
    assert _rules(rendered.one("ClusterRole", "tangram-node")) == NODE


def test_controller_permissions(rendered: Rendered) -> None:
    assert _rules(rendered.one("ClusterRole", "tangram-controller")) == CONTROLLER
    assert _rules(rendered.one("Role", "tangram-controller")) == CONTROLLER_IN_ITS_NAMESPACE


def test_there_are_no_other_roles(any_variant: Rendered) -> None:
    roles = {
        (kind, manifest["metadata"]["name"])
        for kind in ("ClusterRole", "Role")
        for manifest in any_variant.all(kind)
    }
    assert roles == {
        ("ClusterRole", "tangram-node"),
        ("ClusterRole", "tangram-controller"),
        ("Role", "tangram-controller"),
    }


def test_each_workload_has_exactly_its_roles(rendered: Rendered) -> None:
    accounts = {name: spec["serviceAccountName"] for name, spec in rendered.pod_specs().items()}
    bindings = {
        (kind, binding["roleRef"]["name"], binding["subjects"][0]["name"], len(binding["subjects"]))
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in rendered.all(kind)
    }
    # Writing allocations is checked for the whole cluster: only a ClusterRoleBinding grants it.
    assert bindings == {
        ("ClusterRoleBinding", "tangram-node", accounts["node"], 1),
        ("ClusterRoleBinding", "tangram-controller", accounts["controller"], 1),
        ("RoleBinding", "tangram-controller", accounts["controller"], 1),
    }
    made = {account["metadata"]["name"] for account in rendered.all("ServiceAccount")}
    assert made == set(accounts.values())


def test_subjects_live_in_the_release_namespace(any_variant: Rendered) -> None:
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for binding in any_variant.all(kind):
            assert binding["subjects"][0]["namespace"] == "tangram-system"
