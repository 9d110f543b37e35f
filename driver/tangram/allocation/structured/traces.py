"""Whether branches of the search that hold no solution may be left out.

Not where walking them changes what comes after: versions with faults do not wholly take back what they have
tried. And not where walking them could end in an error, which is upstream's answer.
"""

from collections.abc import Sequence

from tangram.allocation.structured.candidates import Taker
from tangram.allocation.structured.constraints import Constraint, DistinctAttribute, MatchAttribute
from tangram.allocation.structured.features import Fault, Gate
from tangram.allocation.structured.outcome import FatalError
from tangram.allocation.structured.requests import Alternative, Request
from tangram.allocation.structured.view import View


def safe(requests: Sequence[Request], taker: Taker) -> bool:
    """True if no branch of the search can end in an error, what is put back leaves no trace, and requests
    take what they say."""
    if any(place.device is None for place in taker.view.places) or not traceless(requests, taker):
        return False
    if taker.view.features.has(Fault.ALL_LOSES_SUBREQUEST) and any(
        alternative.everything for request in requests for alternative in request.alternatives[1:]
    ):
        return False
    return all(_never_fatal(a, taker) for request in requests for a in request.alternatives)


def traceless(requests: Sequence[Request], taker: Taker) -> bool:
    """True if what is put back leaves no trace: then a branch that holds no solution need not be walked."""
    features, alternatives = taker.view.features, [a for r in requests for a in r.alternatives]
    if features.has(Fault.REJECTION_LEAKS) and _leaks(alternatives, taker):
        return False
    if features.has(Fault.COUNTERS_BY_POOL_NAME) and _mixes_accounts(taker.view):
        return False
    return not any(_keeps(c, alternatives, taker.view) for mine in taker.constraints for c in mine)


def _leaks(alternatives: Sequence[Alternative], taker: Taker) -> bool:
    """True if there are accounts that something can be left on: counters, or capacities that may turn out to
    be too small after all the other tests, also those of a device that was shared once."""
    view = taker.view
    features, devices = view.features, [place.device for place in view.places if place.device is not None]
    if features.on(Gate.PARTITIONABLE_DEVICES) and any(device.consumes for device in devices):
        return True
    if not features.on(Gate.CONSUMABLE_CAPACITY):
        return False
    shared = any(device.multiple for device in devices) or any(
        taker.ledger.consumed(position)
        for position, place in enumerate(view.places)
        if place.device is not None
    )
    if not shared and not any(a.capacity for a in alternatives):
        return features.has(Fault.CAPACITY_OF_WRONG_DEVICE) and _may_lack_slots(alternatives, view)
    return features.has(Fault.CAPACITY_OF_WRONG_DEVICE) or any(a.everything for a in alternatives)


def _may_lack_slots(alternatives: Sequence[Alternative], view: View) -> bool:
    """True if a slot of a request may have a number that no device of some slice has: there 1.34 crashes."""
    fewest = min((len(place.slice.devices) for place in view.places if place.slice is not None), default=0)
    return any(a.count > fewest for a in alternatives)


def _mixes_accounts(view: View) -> bool:
    """True if the order in which pools are reached decides what counters there are."""
    names = [pool.id.pool for pool in view.pools if pool.counter_sets]
    return len(set(names)) < len(names)


def _keeps(constraint: Constraint, alternatives: Sequence[Alternative], view: View) -> bool:
    """True if a constraint may remember more, or less, than the devices that it has been given."""
    features, mine = view.features, [a for a in alternatives if a.claim == constraint.claim]
    bound = [a for a in mine if constraint.applies(a)]
    if isinstance(constraint, DistinctAttribute):
        if features.has(Fault.DISTINCT_COMPARES_DEVICES):
            return True
        return features.has(Fault.DISTINCT_REMEMBERS_LAST) and any(a.count > 1 for a in bound)
    if not isinstance(constraint, MatchAttribute) or not features.has(Fault.INTERSECTION_NOT_RESTORED):
        return False
    if not features.on(Gate.LIST_TYPE_ATTRIBUTES):
        return False
    return any(constraint.derives(a) for a in bound) or any(
        place.device is not None
        and (value := place.device.attribute(constraint.attribute)) is not None
        and len(value.values) > 1  # one value cannot be narrowed
        for place in view.places
    )


def _never_fatal(alternative: Alternative, taker: Taker) -> bool:
    fatal = taker.view.features.has(Fault.ALL_CONSTRAINED_IS_FATAL)
    bound = any(constraint.applies(alternative) for constraint in taker.constraints[alternative.claim])
    if alternative.everything and bound and fatal:
        return False
    deriving = [
        c
        for c in taker.constraints[alternative.claim]
        if isinstance(c, MatchAttribute | DistinctAttribute) and c.derives(alternative)
    ]
    try:
        for position in range(len(taker.view.places)):
            if taker.judge.unfit(alternative, position) is None:
                for constraint in deriving:
                    constraint.value(alternative, taker.view.device(position))
    except FatalError:
        return False
    return True
