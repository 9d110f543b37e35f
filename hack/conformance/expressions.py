"""Generated selectors. CEL itself has an oracle of its own; here they choose devices, and sometimes err."""

from conformance.draw import DRIVERS, OTHER_DOMAIN, Draw


def expression(draw: Draw) -> str:
    """A selector that often lets most devices pass."""
    text = _term(draw)
    if draw.chance(0.25):
        text = f"({text}) {draw.one(('&&', '||'))} ({_term(draw)})"
    return text


def _term(draw: Draw) -> str:
    driver = draw.one((DRIVERS[0], DRIVERS[0], draw.one(DRIVERS)))
    own = f'device.attributes["{driver}"]'
    capacity = f'device.capacity["{driver}"]'
    least = draw.one(("40Gi", "2Gi"))
    guarded = not draw.about("selectors", often=0.25, seldom=0.03)

    def guard(name: str, text: str) -> str:
        return f"has({own}.{name}) && {text}" if guarded else text

    terms = (
        "true",
        f'device.driver == "{driver}"',
        f'device.driver != "{DRIVERS[1]}"',
        guard("model", f'{own}.model == "{draw.one(("a100", "h100"))}"'),
        guard("model", f'{own}.model in ["a100", "t4"]'),
        guard("index", f"{own}.index {draw.one(('<', '>=', '!='))} {draw.number(0, 3)}"),
        guard("healthy", f"{own}.healthy"),
        guard("firmware", f'{own}.firmware.isGreaterThan(semver("{draw.one(("0.9.0", "1.0.0", "1.1.0"))}"))'),
        guard("numa", f"{own}.numa == {draw.number(0, 1)}"),
        f'has({capacity}.memory) && {capacity}.memory.compareTo(quantity("{least}")) >= 0',
        f'has({capacity}.cores) && {capacity}.cores.isGreaterThan(quantity("2"))',
        f'"{OTHER_DOMAIN}" in device.attributes',
        f'device.attributes["{OTHER_DOMAIN}"].?root.orValue("pci0") == "pci{draw.number(0, 1)}"',
        f'"model" in {own}',
        "device.allowMultipleAllocations" if "ConsumableCapacity" in draw.features else "true",
    )
    if draw.about("selectors", often=0.06, seldom=0.003):
        # Not what an API server would let pass; but a class may be older than the server.
        return draw.one(("device.nonsense", 'device.driver == "', "1 + 1", f'{own}["nowhere"] == 1'))
    return draw.one(terms)


def derivation(draw: Draw) -> str:
    """The expression of a derived attribute, often with a value that several devices have."""
    driver = draw.one((DRIVERS[0], DRIVERS[0], DRIVERS[0], draw.one(DRIVERS)))
    own, other = f'device.attributes["{driver}"]', f'device.attributes["{OTHER_DOMAIN}"]'
    memory = f'device.capacity["{driver}"].memory'
    if draw.chance(0.025):
        return draw.one(
            (
                *(f'{own}["nowhere"]', "dyn(1u)", 'dyn([1, 2]).exists(x, x == "a")', '[dyn(1), dyn("a")]'),
                *("device.nonsense", "1.0", "[[1]]", f"{own}.model + 1", f"{own}.index", "device.driver +"),
            )
        )
    guarded = (
        *((f"{own}.?index.orValue({i}) % 2") for i in range(2)),
        f"{own}.?index.orValue(3) / 2",
        f'{own}.?model.orValue("none")',
        f'{own}.?model.orValue("none").startsWith("t")',
        f'has({own}.numa) ? string({own}.numa) : "1"',
        f"{own}.?healthy.orValue(true)",
        f'has({own}.firmware) ? {own}.firmware : semver("1.0.0")',
        f"has({own}.firmware) ? {own}.firmware.minor() : 0",
        f'{other}.?root.orValue("pci0")',
        f'{other}.?root.orValue("pci0").replace("pci", "")',
        f'has({memory}) && {memory}.isGreaterThan(quantity("20Gi"))',
        "device.driver",
        'device.driver.split(".")',
        "device.allowMultipleAllocations",
        *('"same"', '"same"', "1", "0", "true"),
        f'device.driver == "{driver}"',
        f"dyn({own}.?index)" if draw.chance(0.2) else f"{own}.?index.orValue(0)",
    )
    lists = (
        f"[{own}.?index.orValue(0), dyn({own}.?index.orValue(1) + 1)]",
        f"{own}.?links.orValue([])",
        f"lists.range({own}.?index.orValue(2))",
        f'{other}.?zones.orValue(["a", "b"])',
        f'[{own}.?model.orValue("none"), dyn("any")]',
        f'has({own}.firmware) ? [{own}.firmware, dyn(semver("1.0.0"))] : []',
        "[]",
    )
    return draw.one(lists if draw.chance(0.3) else guarded)
