"""IP addresses and networks: Kubernetes' libraries."""

import re
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import (
    Function,
    Overload,
    ceil_cost,
    flat,
    function,
    kubernetes_per_character,
    method,
    overload,
)
from tangram.cel.estimate import ONE, Estimate, Range, Sized, Sizes, flat_estimate, per_character_of
from tangram.cel.types import BOOL, CIDR, INT, IP, STRING, Type
from tangram.cel.values import Address, Prefix, Value, kubernetes_size

_BITS = re.compile(r"0|[1-9][0-9]*")
_V4_LINK_LOCAL, _V4_LINK_LOCAL_MULTICAST = ip_network("169.254.0.0/16"), ip_network("224.0.0.0/24")


def _address(text: str) -> IPv4Address | IPv6Address:
    try:
        # ip_address() would take a zone, and digits of other scripts.
        address = ip_address(text if text.isascii() and "%" not in text and len(text) <= 60 else "")
    except ValueError:
        raise CelRuntimeError(f"{text[:60]!r} is not an IP address") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise CelRuntimeError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def _ip(text: str) -> Address:
    return Address(_address(text))


def _cidr(text: str) -> Prefix:
    host, slash, bits = text.rpartition("/")
    if not slash or not _BITS.fullmatch(bits) or len(bits) > 3:
        raise CelRuntimeError(f"{text[:60]!r} is not an IP address with a prefix length")
    address = _address(host)
    if int(bits) > address.max_prefixlen:
        raise CelRuntimeError(f"the prefix length of {text!r} is out of range")
    return Prefix(address, int(bits))


def _accepts(parse: Callable[[str], Value]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except CelRuntimeError:
            return False
        return True

    return check


def _link_local_multicast(value: Address) -> bool:
    address = value.address
    if isinstance(address, IPv4Address):
        return address in _V4_LINK_LOCAL_MULTICAST
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02


def _link_local(value: Address) -> bool:
    address = value.address
    if isinstance(address, IPv4Address):
        return address in _V4_LINK_LOCAL
    return address.is_link_local


def _global_unicast(value: Address) -> bool:
    address = value.address
    if isinstance(address, IPv4Address) and int(address) == 0xFFFFFFFF:
        return False
    special = address.is_unspecified or address.is_loopback or address.is_multicast
    return not (special or _link_local(value))


def _network(prefix: Prefix, bits: int) -> int:
    return int(prefix.address) >> (prefix.address.max_prefixlen - bits)


def _contains_ip(prefix: Prefix, other: Address) -> bool:
    if prefix.address.version != other.address.version:
        return False
    length = other.address.max_prefixlen
    return _network(prefix, prefix.length) == _network(Prefix(other.address, length), prefix.length)


def _contains_cidr(prefix: Prefix, other: Prefix) -> bool:
    return prefix.length <= other.length and _contains_ip(prefix, Address(other.address))


def _masked(prefix: Prefix) -> Prefix:
    host_bits = prefix.address.max_prefixlen - prefix.length
    return Prefix(type(prefix.address)((int(prefix.address) >> host_bits) << host_bits), prefix.length)


def _contains_cost(*, cidr: bool, text: bool) -> Callable[[Sequence[Value], Value], int]:
    """`text`: the second argument must be parsed first."""

    def cost(arguments: Sequence[Value], _: Value) -> int:
        size = kubernetes_size(arguments[0])
        spent = ceil_cost(2 * size, 0.1) + (ceil_cost(size, 0.1) + 1 if cidr else 0)
        return spent + (ceil_cost(kubernetes_size(arguments[1]), 0.1) if text else 0)

    return cost


def _contains_estimate(
    *, cidr: bool, text: bool
) -> Callable[[Sizes, Sized | None, Sequence[Sized]], Estimate]:
    def estimate(sizes: Sizes, _: Sized | None, arguments: Sequence[Sized]) -> Estimate:
        bytes_ = Range(4, 16)
        cost = bytes_.plus(bytes_).scaled(0.1)
        if cidr:
            cost = cost.plus(bytes_.scaled(0.1)).plus(ONE)
        if text:
            cost = cost.plus(sizes.of(arguments[0]).scaled(0.1))
        return Estimate(cost)

    return estimate


def _containing(
    name: str, *, cidr: bool, overloads: Sequence[tuple[str, Type, Callable[..., bool]]]
) -> Function:
    return function(
        name,
        *(
            method(
                id_,
                (CIDR, other),
                BOOL,
                call,
                cost=_contains_cost(cidr=cidr, text=other is STRING),
                estimate=_contains_estimate(cidr=cidr, text=other is STRING),
            )
            for id_, other, call in overloads
        ),
        cost=_contains_cost(cidr=cidr, text=False),
    )


def _parsing(name: str, *overloads: Overload, factor: float = 0.1) -> Function:
    return function(
        name,
        *overloads,
        cost=kubernetes_per_character(factor),
        estimate=per_character_of(0, factor=factor),
    )


def _nominal(name: str, id_: str, parameter: Type, result: Type, call: Callable[[Value], Value]) -> Function:
    return function(name, method(id_, (parameter,), result, call), cost=flat, estimate=flat_estimate)


NETWORK = (
    _parsing(
        "ip",
        overload("string_to_ip", (STRING,), IP, _ip),
        method(
            "cidr_ip",
            (CIDR,),
            IP,
            lambda prefix: Address(prefix.address),
            cost=flat,
            estimate=flat_estimate,
        ),
    ),
    _parsing("isIP", overload("is_ip", (STRING,), BOOL, _accepts(_address))),
    _parsing(
        "ip.isCanonical",
        overload("ip_is_canonical", (STRING,), BOOL, lambda text: str(_address(text)) == text),
        factor=0.2,
    ),
    _parsing("cidr", overload("string_to_cidr", (STRING,), CIDR, _cidr)),
    _parsing("isCIDR", overload("is_cidr", (STRING,), BOOL, _accepts(_cidr))),
    _nominal("family", "ip_family", IP, INT, lambda ip: ip.address.version),
    _nominal("isUnspecified", "ip_is_unspecified", IP, BOOL, lambda ip: ip.address.is_unspecified),
    _nominal("isLoopback", "ip_is_loopback", IP, BOOL, lambda ip: ip.address.is_loopback),
    _nominal("isLinkLocalMulticast", "ip_is_link_local_multicast", IP, BOOL, _link_local_multicast),
    _nominal("isLinkLocalUnicast", "ip_is_link_local_unicast", IP, BOOL, _link_local),
    _nominal("isGlobalUnicast", "ip_is_global_unicast", IP, BOOL, _global_unicast),
    _nominal("prefixLength", "cidr_prefix_length", CIDR, INT, lambda prefix: prefix.length),
    _nominal("masked", "cidr_masked", CIDR, CIDR, _masked),
    _containing(
        "containsIP",
        cidr=False,
        overloads=(
            ("cidr_contains_ip_string", STRING, lambda prefix, text: _contains_ip(prefix, _ip(text))),
            ("cidr_contains_ip_ip", IP, _contains_ip),
        ),
    ),
    _containing(
        "containsCIDR",
        cidr=True,
        overloads=(
            ("cidr_contains_cidr_string", STRING, lambda prefix, text: _contains_cidr(prefix, _cidr(text))),
            ("cidr_contains_cidr", CIDR, _contains_cidr),
        ),
    ),
)
