"""The environment of DRA: device, has(), quantities, versions.

Expected outcomes are those of Kubernetes' own CEL library.
"""

import pytest
from tests.unit.cel.support import outcome

Cases = list[tuple[str, bool | str]]

DEVICE: Cases = [
    ('device.driver == "gpu.resource.admin"', True),
    ('@.type == "gpu"', True),
    ('@["type"] == "gpu"', True),
    ('device.attributes[device.driver].type == "gpu"', True),
    ("@.index == 3", True),
    ("@.index == 3.0", True),
    ('@.index == "3"', False),
    ("@.index == null", False),
    ("@.index in [1, 2, 3]", True),
    ("@.index > 2 && @.index <= 3", True),
    ("@.index + 1 == 4", True),
    ("@.index + 1.0 == 4.0", "error: no such overload: +(int, double)"),
    ('@.index < "3"', "error: no such overload: int < string"),
    ("@.healthy", True),
    ("!@.healthy", False),
    ("@.healthy == 1", False),
    ("@.healthy ? true : false", True),
    ("@.index", "error: the expression evaluates to int, not bool"),
    ("@.type", "error: the expression evaluates to string, not bool"),
    ('@.type == "gpu" || @.nope == 1', True),
    ('@.nope == 1 || @.type == "gpu"', True),
    ("@.nope == 1", "error: no such key: @.nope"),
    ('@["nope"] == 1', "error: no such key: @.nope"),
    ("@.nope == 1 ? true : false", "error: no such key: @.nope"),
    ("!@.nope", "error: no such key: @.nope"),
    ("@[@.type] == 1", "error: no such key: 'gpu'"),
    ('@["gpu.resource.admin/type"] == "gpu"', 'error: no such key: @["gpu.resource.admin/type"]'),
    ("@.index.foo == 1", "error: a value of type int has no fields"),
    ("@.index[0] == 1", "error: a value of type int has no fields"),
    ('@.type[0] == "g"', "error: a value of type string has no fields"),
    ('@.type.startsWith("g")', True),
    ('@.index.startsWith("g")', "error: no such overload: startsWith(int, string)"),
    ('@.productName.contains("H100")', True),
    ("size(@.type) == 3", True),
    ('device.attributes["other.example.com"].x == 7', True),
    ('device.attributes["resource.kubernetes.io"].numaNode == 0', True),
    (
        'device.attributes["unknown.example.com"].x == 7',
        'error: no such key: device.attributes["unknown.example.com"].x',
    ),
    ("device.attributes.unknown.x == 7", 'error: no such key: device.attributes["unknown"].x'),
    ('size(device.attributes["unknown.example.com"]) == 0', True),
    ("size(device.attributes) == 3", True),
    ('"gpu.resource.admin" in device.attributes', True),
    ('"unknown.example.com" in device.attributes', False),
    ('"type" in @', True),
    ('"nope" in @', False),
    ('@.exists(k, k == "type")', True),
    ("@.exists(k, @[k] == 3)", True),
    ('device.attributes.exists(d, device.attributes[d].exists(k, k == "x"))', True),
    ('device.attributes.all(d, d.contains("."))', True),
    ("device.attributes == device.attributes", True),
    ("@ == @", True),
    ('cel.bind(a, @, a.type == "gpu" && a.index == 3)', True),
    ('cel.bind(a, device.attributes, a["unknown.example.com"].size() == 0)', True),
    ('device.capacity["gpu.resource.admin"].memory == quantity("80Gi")', True),
    ('device.capacity["gpu.resource.admin"].nope == quantity("80Gi")', "error: no such key: %.nope"),
    (
        'device.capacity["unknown.example.com"].memory == quantity("80Gi")',
        'error: no such key: device.capacity["unknown.example.com"].memory',
    ),
    ("device.allowMultipleAllocations", False),
    ("!device.allowMultipleAllocations", True),
    ("device.allowMultipleAllocations == false", True),
]

HAS: Cases = [
    ("has(@.type)", True),
    ("has(@.nope)", False),
    ("!has(@.nope) || @.nope == 1", True),
    ("has(@.nope) && @.nope == 1", False),
    ('has(device.attributes["unknown.example.com"].x)', False),
    ("has(device.attributes.foo)", True),
    ("has(device.attributes.foo.bar)", False),
    ("has(device.driver)", True),
    ("has(device.attributes)", True),
    ('has(device.capacity["gpu.resource.admin"].memory)', True),
    ('has(device.capacity["gpu.resource.admin"].nope)', False),
    ("has(@.index.foo)", False),
    ('has({"a": 1}.a)', True),
    ('has({"a": 1}.b)', False),
    ('has(dyn("a").b)', False),
    ('has({"a": {"b": 1}}.a.b)', True),
    ('has(dyn({"a": {"b": 1}}).x.b)', "error: no such key: 'x'"),
]

QUANTITIES: Cases = [
    ('%.memory.compareTo(quantity("40Gi")) >= 0', True),
    ('%.memory.isGreaterThan(quantity("40Gi"))', True),
    ('%.memory.isLessThan(quantity("80Gi"))', False),
    ('%.memory.isLessThan(dyn("80Gi"))', "error: no such overload: isLessThan(quantity, string)"),
    ('%.cores == quantity("100")', True),
    ("%.memory == @.type", "error: no such overload: quantity == string"),
    ("%.memory != @.type", True),
    ("%.memory == null", False),
    ('quantity("80Gi") == quantity("85899345920")', True),
    ('quantity("1k") == quantity("1000")', True),
    ('quantity("1500m") == quantity("1.5")', True),
    ('quantity("1Ei").isGreaterThan(quantity("1E"))', True),
    ('quantity("1").compareTo(quantity("2")) == -1', True),
    ('quantity("2").compareTo(quantity("2")) == 0', True),
    ('quantity("bad") == quantity("1")', "error: 'bad' is not a quantity (examples: 80Gi, 1.5, 100m)"),
    ('quantity("bad") == quantity("1") || true', True),
    ('isQuantity("1.5Gi")', True),
    ('isQuantity("+1e3")', True),
    ('isQuantity(".5")', True),
    ('isQuantity("5.")', True),
    ('isQuantity("bad")', False),
    ('isQuantity("1 Gi")', False),
    ('isQuantity("1K")', False),
    ('isQuantity("")', False),
    ('isQuantity("1e3Gi")', False),
    ('quantity("1Gi").add(quantity("1Gi")) == quantity("2Gi")', True),
    ('quantity("1Gi").add(1) == quantity("1073741825")', True),
    ('quantity("1Gi").sub(quantity("1Gi")) == quantity("0")', True),
    ('quantity("1Gi").sub(1) == quantity("1073741823")', True),
    ('quantity("1Gi").asInteger() == 1073741824', True),
    ('quantity("1500m").asInteger() == 2', "error: the quantity is not a 64-bit integer"),
    ('quantity("1500m").isInteger()', False),
    ('quantity("1Ki").isInteger()', True),
    ('quantity("1500m").asApproximateFloat() == 1.5', True),
    ('sign(quantity("-5")) == -1', True),
    ('quantity("1") in [quantity("1"), quantity("2")]', True),
    ('dyn(quantity("1")) in [dyn(1)]', False),
    ('dyn(1) == dyn(quantity("1"))', False),
    ('dyn(quantity("1")) == dyn(1)', "error: no such overload: quantity == int"),
]

VERSIONS: Cases = [
    ('@.driverVersion == semver("570.86.15")', True),
    ('@.driverVersion.isGreaterThan(semver("550.0.0"))', True),
    ('@.driverVersion.isLessThan(semver("570.86.15"))', False),
    ('@.driverVersion.compareTo(semver("570.86.16")) == -1', True),
    ("@.driverVersion.major() == 570", True),
    ("@.driverVersion.minor() == 86", True),
    ("@.driverVersion.patch() == 15", True),
    ('@.driverVersion == "570.86.15"', "error: no such overload: semver == string"),
    ('"570.86.15" == @.driverVersion', False),
    ('@.driverVersion != "570.86.15"', True),
    ("@.driverVersion == null", False),
    ("@.driverVersion.foo == 1", "error: a value of type semver has no fields"),
    ('@.type.isGreaterThan(semver("1.2.3"))', "error: no such overload: isGreaterThan(string, semver)"),
    ('@.pre == semver("1.2.3-rc.1+other")', True),
    ('@.pre.isLessThan(semver("1.2.3"))', True),
    ('semver("1.2") == semver("1.2.0")', "error: '1.2' is not a semantic version (example: 570.86.15)"),
    ('semver("v1.2", true) == semver("1.2.0")', True),
    ('semver("1", true) == semver("1.0.0")', True),
    ('semver("01.02.03", true) == semver("1.2.3")', True),
    (
        'semver("1.2.3.4", true) == semver("1.2.3")',
        "error: '1.2.3.4' is not a semantic version (example: 570.86.15)",
    ),
    (
        'semver("1.2-rc1", true) == semver("1.2.0")',
        "error: '1.2-rc1' is not a semantic version (example: 570.86.15)",
    ),
    ('semver("1.2.3", false) == semver("1.2.3")', True),
    ('isSemver("1.2.3")', True),
    ('isSemver("1.2.3-rc.1+build")', True),
    ('isSemver("v1.2.3")', False),
    ('isSemver("v1.2.3", true)', True),
    ('isSemver("1.2")', False),
    ('isSemver("01.2.3")', False),
    ('isSemver("1.2.3-01")', False),
    ('isSemver("")', False),
    ('semver("1.2.3") in [semver("1.2.3")]', True),
    ('isSemver("1..2", true)', False),
    ('isSemver("1.2.99999999999999999999999999")', False),
]


@pytest.mark.parametrize(("expression", "expected"), DEVICE)
def test_device(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), HAS)
def test_has(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), QUANTITIES)
def test_quantities(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected


@pytest.mark.parametrize(("expression", "expected"), VERSIONS)
def test_versions(expression: str, expected: bool | str) -> None:
    assert outcome(expression) == expected
