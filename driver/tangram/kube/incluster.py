"""The API server as a pod finds it: two environment variables and two files (Kubernetes documentation,
"Accessing the Kubernetes API from a Pod").

By hand, because any import of the `kubernetes` package costs some 20 MiB and a third of the start of a
process: too much for what is read here.
"""

import os
import ssl
from pathlib import Path

from tangram.base.errors import ConfigurationError
from tangram.kube.access import Server

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_cluster() -> bool:
    """Whether this process runs in a pod."""
    return bool(os.environ.get(_HOST))


class ServiceAccount:
    """The credentials of a pod."""

    async def authorization(self, *, fresh: bool) -> str:  # noqa: ARG002 - the file is read either way
        try:
            token = (SERVICE_ACCOUNT / "token").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _problem(f"{SERVICE_ACCOUNT / 'token'}: {error}") from error
        if not token:
            raise _problem(f"{SERVICE_ACCOUNT / 'token'} is empty")
        return f"Bearer {token}"


def server() -> Server:
    """The API server of this pod's cluster. Raises ConfigurationError."""
    host, port = os.environ[_HOST], os.environ.get(_PORT)
    if not port:
        raise _problem(f"{_PORT} is not set")
    authority = SERVICE_ACCOUNT / "ca.crt"
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except OSError as error:  # ssl.SSLError is one
        raise _problem(f"{authority}: {error}") from error
    address = f"[{host}]" if ":" in host else host  # IPv6
    return Server(url=f"https://{address}:{port}", ssl_context=context)


def _problem(cause: str) -> ConfigurationError:
    return ConfigurationError(
        f"in-cluster configuration: {cause}",
        next_step="mount the service account token into the pod, or pass --kubeconfig",
    )
