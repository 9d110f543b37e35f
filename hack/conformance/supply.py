"""Generated nodes, device classes and resource slices: what an API server of the version would keep."""

from typing import Any

from conformance.draw import (
    ATTRIBUTES,
    CAPACITIES,
    COUNTERS,
    DRIVERS,
    LISTS,
    NODES,
    OTHER_DOMAIN,
    TAINTS,
    Draw,
    Json,
)
from conformance.expressions import expression

ZONES = ("east", "west")
CLASSES = ("any", "gpu", "special")
_AMOUNTS = ("0", "1", "2", "3", "4", "1", "2", "500m", "1500m", "1k")


def nodes(draw: Draw) -> list[Json]:
    """One to three, labelled with a zone."""
    count = draw.number(2, 3) if draw.about("nodes", often=0.8, seldom=0.1) else 1
    return [_node(draw, name) for name in NODES[:count]]


def _node(draw: Draw, name: str) -> Json:
    labels = {"zone": draw.one(ZONES), "kubernetes.io/hostname": name, "rank": f"{draw.number(1, 3)}"}
    if draw.about("nodes", often=0.15, seldom=0.0):
        del labels["zone"]
    made: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    if draw.chance(0.5):
        made["status"] = {"declaredFeatures": ["DRAOptionalNodeOperations"]}
    return made


def classes(draw: Draw) -> list[Json]:
    """Without selectors, for one driver, and for whatever an expression says."""
    specs: list[Json] = [
        {},
        {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVERS[0]}"'}}]},
        {"selectors": [{"cel": {"expression": expression(draw)}}]},
    ]
    made = []
    for name, spec in zip(CLASSES, specs, strict=True):
        if draw.about("configs", often=0.5):
            spec["config"] = [config(draw, f"{name}-{i}") for i in range(draw.number(1, 2))]
        made.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
    return made


def config(draw: Draw, label: str) -> Json:
    """An opaque configuration, recognisable by its label."""
    parameters = {"apiVersion": "example.com/v1", "kind": "Settings", "label": label}
    return {"opaque": {"driver": draw.one(DRIVERS), "parameters": parameters}}


def slices(draw: Draw, node_names: list[str]) -> list[Json]:
    """All slices of all pools."""
    made: list[Json] = []
    for driver in DRIVERS[: 1 + draw.chance(0.35) + draw.chance(0.1)]:
        for pool_name in draw.some(("pool-a", *node_names), least=1, most=2):
            home = pool_name if pool_name in node_names else draw.one(node_names)
            made += _Pool(draw, driver, pool_name, home).slices()
    draw.random.shuffle(made)
    return made


class _Pool:
    """One pool: its slices of the newest generation, and sometimes leftovers of others."""

    def __init__(self, draw: Draw, driver: str, name: str, home: str) -> None:
        self.draw = draw
        self.driver = driver
        self.name = name
        self.home = home
        self.generation = draw.number(1, 3)
        self.scope = self._scope()
        self.counted = draw.about("counters", often=0.85, seldom=0.03)
        self.sets = self._counter_sets() if self.counted else []
        self.shareable = draw.about("shares", often=0.75, seldom=0.04)
        self.numbers = iter(range(1000))

    def slices(self) -> list[Json]:
        draw = self.draw
        device_slices = draw.number(1, 3) if draw.chance(0.5) else 1
        bodies = [self._device_slice() for _ in range(device_slices)]
        if self.sets and not draw.version.counters_beside_devices:
            bodies += [{"sharedCounters": [counters]} for counters in self.sets]
            draw.random.shuffle(bodies)
        count = len(bodies)
        if draw.about("generations", often=0.25, seldom=0.01):
            count = max(1, count + draw.one((-1, 1)))
        made = [self._slice(body, self.generation, count) for body in bodies]
        if draw.about("generations", often=0.5, seldom=0.01):
            made += self._other_generation()
        return made

    def _other_generation(self) -> list[Json]:
        """Slices that the driver has not removed yet, or has begun to publish."""
        draw = self.draw
        generation = draw.one((0, self.generation + 1)) if self.generation == 1 else self.generation - 1
        if draw.chance(0.3):
            generation = self.generation + 1
        made = self._slice(self._device_slice(), generation, draw.number(1, 2))
        if "nodeName" in made["spec"] and draw.chance(0.4):
            made["spec"]["nodeName"] = draw.one(NODES)
        return [made]

    def _slice(self, body: Json, generation: int, count: int) -> Json:
        number = next(self.numbers)
        # Names do not follow the order of making, so that sorting them shows.
        name = f"{self.draw.one('abc')}-{self.driver.split('.')[0]}-{self.name}-{generation}-{number}"
        scope = self.scope if not self.draw.about("nodes", often=0.1, seldom=0.0) else self._scope()
        if "sharedCounters" in body and "perDeviceNodeSelection" in scope:
            scope = {"allNodes": True}
        if "perDeviceNodeSelection" in scope:
            for device in body["devices"]:
                device.update(self._place())
        pool = {"name": self.name, "generation": generation, "resourceSliceCount": count}
        if self._alpha("OptionalNodeOperations", 0.15) and "devices" in body:
            body["skipNodeOperations"] = self.draw.one((["*"], ["NodeUnprepareResources"]))
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {"driver": self.driver, "pool": pool, **scope, **body},
        }

    def _scope(self) -> Json:
        if not self.draw.about("nodes", often=0.8, seldom=0.15):
            return {"nodeName": self.home}
        if self.draw.chance(0.3):
            return {"perDeviceNodeSelection": True}
        return self._place()

    def _place(self) -> Json:
        draw = self.draw
        return draw.one(({"nodeName": self.home}, {"allNodes": True}, {"nodeSelector": node_selector(draw)}))

    def _counter_sets(self) -> list[Json]:
        draw = self.draw
        return [
            {
                "name": f"set-{i}",
                "counters": {
                    name: {"value": f"{draw.number(2, 8)}"} for name in draw.some(COUNTERS, least=1)
                },
            }
            for i in range(draw.number(1, 3))
        ]

    def _device_slice(self) -> Json:
        draw = self.draw
        body: Json = {}
        sets = self.sets
        if sets and draw.version.counters_beside_devices:
            sets = [{**counters, "name": f"{counters['name']}-{next(self.numbers)}"} for counters in sets]
            body["sharedCounters"] = sets
        first = next(self.numbers)
        if draw.about("generations", often=0.08, seldom=0.004):
            first = 0  # the same names again
        body["devices"] = [
            self._device(f"d{first}{letter}", sets) for letter in "abcdefg"[: draw.one((1, 2, 3, 3, 4, 5, 7))]
        ]
        return body

    def _device(self, name: str, sets: list[Json]) -> Json:
        draw = self.draw
        device: Json = {"name": name}
        listed = self._alpha("ListTypeAttributes", 1) and draw.about("lists", often=0.9)
        known = {**ATTRIBUTES, **(LISTS if listed else {})}
        spared = 0.3 if draw.chance(0.25) else 0.02
        attributes: Json = {
            self._qualified(key): draw.one(values) for key, values in known.items() if not draw.chance(spared)
        }
        if attributes:
            device["attributes"] = attributes
        shared = self.shareable and draw.chance(0.8)
        if shared:
            device["allowMultipleAllocations"] = True
        capacity = {
            self._qualified(key): self._capacity(draw.one(values), shared)
            for key, values in CAPACITIES.items()
            if not draw.chance(0.4)
        }
        if capacity:
            device["capacity"] = capacity
        if sets and draw.chance(0.85):
            device["consumesCounters"] = self._consumption(sets)
        if draw.about("taints", often=0.5):
            device["taints"] = draw.some(TAINTS, least=1, most=2)
        if draw.about("binding", often=0.4, seldom=0.01):
            device["bindingConditions"] = ["example.com/ready"]
            device["bindingFailureConditions"] = ["example.com/failed"]
            if draw.chance(0.5):
                device["bindsToNode"] = True
        return device

    def _alpha(self, feature: str, probability: float) -> bool:
        """Seldom also where the feature is off: it may have been on before."""
        known = feature in self.draw.version.features
        on = feature in self.draw.features
        return known and self.draw.chance(probability if on else probability / 10)

    def _qualified(self, key: str) -> str:
        """Sometimes with the driver's own domain spelled out."""
        return f"{self.driver}/{key}" if "/" not in key and self.draw.chance(0.06) else key

    def _consumption(self, sets: list[Json]) -> list[Json]:
        draw = self.draw
        entries = []
        for counters in draw.some(sets, least=1, most=2):
            names = list(counters["counters"])
            values = {name: {"value": draw.one(_AMOUNTS)} for name in draw.some(names, least=1)}
            if draw.about("generations", often=0.02, seldom=0.0):
                values["unheard-of"] = {"value": "1"}
            unknown = draw.about("generations", often=0.02, seldom=0.0)
            entry: Json = {"counterSet": "nowhere" if unknown else counters["name"], "counters": values}
            if self._alpha("CompatibilityGroups", 0.4):
                entry["compatibilityGroups"] = draw.some(("x", "y", "z"), least=1, most=2)
            entries.append(entry)
        return entries

    def _capacity(self, value: str, shared: bool) -> Json:
        draw = self.draw
        if not shared or draw.chance(0.4):
            return {"value": value}
        return policy(draw)


def policy(draw: Draw) -> Json:
    """A capacity with a request policy that validation accepts."""
    unit = draw.one(("", "", "Gi", "Mi", "k"))
    if "FractionalCapacityRange" in draw.features and draw.chance(0.4):
        unit = "m"

    def text(number: int) -> str:
        return f"{number * (100 if unit == 'm' else 1)}{unit}"

    total = draw.number(6, 24)
    kind = draw.number(0, 3)
    if kind == 0:
        return {"value": text(total), "requestPolicy": {"default": text(draw.number(1, total))}}
    if kind == 1:
        values = sorted(draw.random.sample(range(1, total + 1), draw.number(1, 4)))
        chosen = {"default": text(draw.one(values)), "validValues": [text(value) for value in values]}
        return {"value": text(total), "requestPolicy": chosen}
    least, step = draw.number(1, 3), draw.number(1, 3)
    steps = (total - least) // step
    chosen_range: dict[str, Any] = {"min": text(least)}
    if kind == 3:
        chosen_range["step"] = text(step)
    if draw.chance(0.6):
        chosen_range["max"] = text(least + step * draw.number(1, steps))
        steps = draw.number(0, 1)
    default = text(least + step * draw.number(0, min(steps, 1)))
    return {"value": text(total), "requestPolicy": {"default": default, "validRange": chosen_range}}


def node_selector(draw: Draw) -> Json:
    """One term, as slices must have it."""
    requirement = draw.one(
        (
            {"key": "zone", "operator": "In", "values": [draw.one(ZONES)]},
            {"key": "zone", "operator": "NotIn", "values": [draw.one(ZONES)]},
            {"key": "zone", "operator": "Exists"},
            {"key": "absent", "operator": "DoesNotExist"},
            {"key": "rank", "operator": draw.one(("Gt", "Lt")), "values": ["2"]},
            {"key": "kubernetes.io/hostname", "operator": "In", "values": draw.some(NODES, least=1)},
        )
    )
    term: Json = {"matchExpressions": [requirement]}
    if draw.chance(0.2):
        term["matchExpressions"].append({"key": "kubernetes.io/hostname", "operator": "Exists"})
    if draw.chance(0.2):
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [draw.one(NODES)]}]
    return {"nodeSelectorTerms": [term]}


__all__ = ["OTHER_DOMAIN", "classes", "config", "node_selector", "nodes", "policy", "slices"]
