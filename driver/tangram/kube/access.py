"""Where an API server is, and who we are to it: values that `incluster` and `kubeconfig` fill in."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An API server. `url` is as configured; `tls_name` is the name in its certificate, if it is another."""

    url: str
    ssl_context: ssl.SSLContext
    tls_name: str | None = None
    proxy: str | None = None
    proxy_headers: Mapping[str, str] = field(default_factory=dict)


class Credentials(Protocol):
    """Who we are, apart from a client certificate, which is part of the server's `ssl_context`."""

    async def authorization(self, *, fresh: bool) -> str:
        """The value of the header, "" for none. Raises ConfigurationError.

        `fresh`: the present one was refused, so that nothing remembered of an exec plugin or a file will do.
        """
        ...
