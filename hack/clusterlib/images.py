"""Test images without a registry: an OCI archive made from Debian's static busybox.

Format: https://github.com/opencontainers/image-spec (image layout 1.0.0 in a tar).
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BUSYBOX_IMAGE = "localhost/busybox:1"
# The image of deploy/examples, under the name by which a cluster with a registry pulls it.
EXAMPLES_IMAGE = "docker.io/library/busybox:1.36"
PAUSE_IMAGE = "localhost/pause:1"

_BUSYBOX = Path("/bin/busybox")
_PLATFORM = {"architecture": "amd64", "os": "linux"}


def write_test_images(archive: Path) -> None:
    """Write all images, which share one layer, into one archive."""
    applets = subprocess.run([_BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    layer = busybox_layer(_BUSYBOX.read_bytes(), applets)
    commands = {
        BUSYBOX_IMAGE: ["/bin/sh"],
        EXAMPLES_IMAGE: ["/bin/sh"],
        # The sandbox container only holds the pod's namespaces; the runtime ends it with SIGKILL.
        PAUSE_IMAGE: ["/bin/sleep", "2147483647"],
    }
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(oci_archive(layer, commands))


def busybox_layer(busybox: bytes, applets: Sequence[str]) -> bytes:
    """An uncompressed layer: the binary, a link per applet, users and the folders programs expect."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("var", 0o755)):
            tar.addfile(_entry(name, mode=mode, kind=tarfile.DIRTYPE))
        _add_file(tar, "bin/busybox", busybox, mode=0o755)
        _add_file(
            tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
        )
        _add_file(tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        for applet in sorted(set(applets) - {"busybox"}):
            link = _entry(f"bin/{applet}", mode=0o777, kind=tarfile.SYMTYPE)
            link.linkname = "busybox"
            tar.addfile(link)
    return content.getvalue()


def oci_archive(layer: bytes, commands: Mapping[str, Sequence[str]]) -> bytes:
    """An OCI image layout with one image per name in `commands`, all made of the one layer."""
    blobs: dict[str, bytes] = {}

    def add(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    layer_descriptor = add("layer.v1.tar", layer)
    manifests = []
    for name, command in commands.items():
        config = {
            **_PLATFORM,
            "config": {"Cmd": command, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": add("config.v1+json", _json(config)),
            "layers": [layer_descriptor],
        }
        descriptor = add("manifest.v1+json", _json(manifest))
        manifests.append(
            {**descriptor, "platform": _PLATFORM, "annotations": {"io.containerd.image.name": name}}
        )
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        _add_file(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add_file(tar, "index.json", _json(index))
        for digest, blob in sorted(blobs.items()):
            _add_file(tar, f"blobs/sha256/{digest}", blob)
    return content.getvalue()


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _entry(name: str, *, mode: int, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = mode
    info.type = kind
    return info


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    info = _entry(name, mode=mode, kind=tarfile.REGTYPE)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
