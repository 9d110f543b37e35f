"""Keys and certificates of a cluster: its own CA, so that every client can verify the API server."""

from pathlib import Path

from clusterlib.commands import run
from clusterlib.layout import API_SERVICE_ADDRESS, Layout

_DAYS = "365"
_SIGN = f"openssl x509 -req -days {_DAYS} -copy_extensions copy -CAcreateserial".split()


def create(layout: Layout) -> None:
    """Write the CA, the API server's two certificates (server; client of kubelets) and the token signing key.

    Does nothing where they are: new keys would lock out all that runs with the old ones.
    """
    directory = layout.pki_dir
    complete = directory / "complete"
    if complete.exists():
        return
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _new_key(directory / "ca.key")
    run(
        [
            *_x509("ca", directory),
            "-x509",
            "-days",
            _DAYS,
            "-subj",
            "/CN=tangram-test-ca",
            "-out",
            directory / "ca.crt",
        ]
    )
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    addresses = (f"{layout.gateway}", "127.0.0.1", f"{API_SERVICE_ADDRESS}")
    alternatives = ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])
    _issue(
        directory, "apiserver", subject="/CN=kube-apiserver", usage="serverAuth", alternatives=alternatives
    )
    _issue(
        directory,
        "kubelet-client",
        subject="/O=system:masters/CN=kube-apiserver-kubelet-client",
        usage="clientAuth",
    )
    _new_key(directory / "service-accounts.key")
    public = run(["openssl", "pkey", "-in", directory / "service-accounts.key", "-pubout"])
    (directory / "service-accounts.pub").write_text(public)
    complete.touch()


def _issue(directory: Path, name: str, *, subject: str, usage: str, alternatives: str = "") -> None:
    _new_key(directory / f"{name}.key")
    extensions = ["-addext", f"extendedKeyUsage={usage}"]
    if alternatives:
        extensions += ["-addext", f"subjectAltName={alternatives}"]
    request = run([*_x509(name, directory), "-subj", subject, *extensions])
    certificate = run(
        [*_SIGN, "-CA", directory / "ca.crt", "-CAkey", directory / "ca.key"],
        stdin=request,
    )
    (directory / f"{name}.crt").write_text(certificate)


def _x509(name: str, directory: Path) -> list[str | Path]:
    return ["openssl", "req", "-new", "-key", directory / f"{name}.key"]


def _new_key(file: Path) -> None:
    key = run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"])
    file.touch(mode=0o600)
    file.write_text(key)
