"""URLs: Kubernetes' library, with the syntax that Go's package `net/url` accepts."""

import re
from collections.abc import Callable
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tangram.base.errors import CelRuntimeError
from tangram.cel.declarations import Function, flat, function, kubernetes_per_character, method, overload
from tangram.cel.estimate import flat_estimate, per_character_of
from tangram.cel.types import BOOL, STRING, URL, Type, list_of, map_of
from tangram.cel.values import Budget, Url, Value

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(.*)", re.DOTALL)
_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_LOW_ESCAPE = re.compile(r"%(?!25)[0-7][0-9a-fA-F]")
_PORT = re.compile(r":[0-9]*")
_USER = re.compile(r"[A-Za-z0-9._:~!$&'()*+,;=%@-]*")
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:\[\]<>\"%-]|[^\x00-\x7f])*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/%\[\]-])*")
_SAFE_IN_PATH = "$&+,/:;=@"
_MAXIMUM_PARAMETERS = 10_000


class _UrlError(ValueError):
    """Not a URL."""


def _unescape(text: str) -> bytes:
    if _ESCAPE.search(text):
        raise _UrlError("a % is not followed by two hexadecimal digits")
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass"))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _host_name(host: str) -> str:
    if _LOW_ESCAPE.search(host) or not _HOST.fullmatch(host):
        raise _UrlError("the host holds a character that it may not")
    return _text(_unescape(host))


def _bracketed(host: str) -> str:
    """`[address]`, or `[address]:port`."""
    end = host.rfind("]")
    if end < 0:
        raise _UrlError("missing ']' in host")
    port = host[end + 1 :]
    if port and not _PORT.fullmatch(port):
        raise _UrlError("the port is not a number")
    name, escaped, zone = host[1:end].partition("%25")
    inner = _host_name(name) + (_text(_unescape(escaped + zone)) if escaped else "")
    try:
        IPv6Address(inner)
    except (AddressValueError, ValueError):
        raise _UrlError("not an IPv6 address in brackets") from None
    return f"[{inner}]{port}"


def _host(scheme: str, host: str) -> str:
    bracket = host.rfind("[")
    if bracket > 0:
        raise _UrlError("'[' within a host")
    if bracket == 0:
        return _bracketed(host)
    if ":" in host:
        colon = host.index(":") if scheme in {"http", "https"} else host.rindex(":")
        if not _PORT.fullmatch(host[colon:]):
            raise _UrlError("the port is not a number")
    return _host_name(host)


def _authority(scheme: str, authority: str) -> str:
    """The host; Raises _UrlError also for a user that is none."""
    user, at, host = authority.rpartition("@")
    parsed = _host(scheme, host)
    if at:
        if not _USER.fullmatch(user):
            raise _UrlError("the user holds a character that it may not")
        _unescape(user)
    return parsed


def parse(text: str, *, request: bool) -> Url:
    """Raises _UrlError. `request`: as in a request, absolute and without a fragment."""
    if _CONTROL.search(text):
        raise _UrlError("a control character")
    if not text and request:
        raise _UrlError("empty url")
    if text == "*":
        return Url("", "", "*", "", "", text)
    scheme, rest = "", text
    if match := _SCHEME.fullmatch(text):
        scheme, rest = match[1].lower(), match[2]
    elif text.startswith(":"):
        raise _UrlError("missing protocol scheme")
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, "", "", "", query, f"{scheme}:{text[len(scheme) + 1 :]}")
        if request:
            raise _UrlError("invalid URI for request")
        if ":" in rest.partition("/")[0]:
            raise _UrlError("first path segment in URL cannot contain colon")
    host = ""
    if rest.startswith("//") and (scheme or (not request and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        host = _authority(scheme, authority)
    path = _text(_unescape(rest))
    raw = "" if _escaped(path) == rest else rest
    return Url(scheme, host, path, raw, query, f"{scheme}:{text[len(scheme) + 1 :]}" if scheme else text)


def _escaped(path: str) -> str:
    return quote_from_bytes(path.encode("utf-8", "surrogateescape"), safe=_SAFE_IN_PATH)


def _url(budget: Budget, text: str) -> Url:
    budget.labour(2 * len(text))
    try:
        parse(text, request=True)
        before, hash_, fragment = text.partition("#")
        url = parse(before, request=False)
        _unescape(fragment)
    except _UrlError as error:
        raise CelRuntimeError(f"{text[:60]!r} is not a URL: {error}") from None
    return url._replace(text=url.text + hash_ + fragment)


def _is_url(budget: Budget, text: str) -> bool:
    budget.labour(len(text))
    return is_request_uri(text)


def is_request_uri(text: str) -> bool:
    try:
        parse(text, request=True)
    except _UrlError:
        return False
    return True


def _split_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    if colon and _PORT.fullmatch(colon + port):
        host = name
    else:
        port = ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, port


def _escaped_path(budget: Budget, url: Url) -> str:
    budget.labour(len(url.path) // 4)
    if url.raw_path and _PLAIN_PATH.fullmatch(url.raw_path):
        return url.raw_path
    return "*" if url.path == "*" else _escaped(url.path)


def _query(budget: Budget, url: Url) -> dict[Value, Value]:
    """As Go's `Query()`: what cannot be read is left out."""
    found: dict[Value, Value] = {}
    parts = url.raw_query.split("&")
    budget.labour(len(url.raw_query) + 30 * len(parts))
    for part in parts if len(parts) <= _MAXIMUM_PARAMETERS else ():
        if not part or ";" in part:
            continue
        key, _, value = part.replace("+", " ").partition("=")
        try:
            name, text = _text(_unescape(key)), _text(_unescape(value))
        except _UrlError:
            continue
        known = found.get(name, ())
        budget.labour(len(known) // 8)
        found[name] = (*known, text)
    return found


def _accessor(
    name: str, id_: str, result: Type, call: Callable[..., Value], *, budgeted: bool = False
) -> Function:
    found = method(id_, (URL,), result, call, budgeted=budgeted)
    return function(name, found, cost=flat, estimate=flat_estimate)


URLS = (
    function(
        "url",
        overload("string_to_url", (STRING,), URL, _url, budgeted=True),
        cost=kubernetes_per_character(),
        estimate=per_character_of(0, sized=True),
    ),
    function("isURL", overload("is_url_string", (STRING,), BOOL, _is_url, budgeted=True)),
    _accessor("getScheme", "url_get_scheme", STRING, lambda url: url.scheme),
    _accessor("getHost", "url_get_host", STRING, lambda url: url.host),
    _accessor("getHostname", "url_get_hostname", STRING, lambda url: _split_port(url.host)[0]),
    _accessor("getPort", "url_get_port", STRING, lambda url: _split_port(url.host)[1]),
    _accessor("getEscapedPath", "url_get_escaped_path", STRING, _escaped_path, budgeted=True),
    _accessor("getQuery", "url_get_query", map_of(STRING, list_of(STRING)), _query, budgeted=True),
)
