#!/usr/bin/env python3
"""Writes a container image as an archive that `ctr images import` reads. Uses no image registry.

    cluster/make_image.py NAME FILE.tar [FILE=PATH...]

The image has busybox, and links to the host's /usr: pods that mount it there can run the host's programs. Further files are added at
their paths, with the shared libraries that they need.
"""

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile

BUSYBOX = "/bin/busybox"


def libraries(file):
    """The shared libraries of a program or library, with the loader."""
    listing = subprocess.run(["ldd", file], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {word for word in listing.split() if word.startswith("/")}


def layer(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("usr", "tmp", "dev", "proc", "sys", "etc", "run", "var", "opt", "busybox"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        archive.add(BUSYBOX, "busybox/busybox")
        links = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
        links.update({f"busybox/{name}": "busybox" for name in ("sh", "sleep", "mkdir", "cp", "mv")})
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for library in sorted(set().union(*(libraries(file) for file in files))):
            directory, name = os.path.split(library)
            archive.add(os.path.realpath(library), os.path.join(os.path.realpath(directory), name).lstrip("/"))
        for file, path in files.items():
            archive.add(file, path.lstrip("/"))
    return data.getvalue()


def main():
    name, path, *files = sys.argv[1:]
    content = layer(dict(file.split("=") for file in files))
    digest = hashlib.sha256(content).hexdigest()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    config = json.dumps({
        "architecture": architecture, "os": "linux",
        "config": {"Cmd": ["/busybox/sleep", "1000000"], "Env": ["PATH=/busybox:/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        for file, data in ((config_name, config), ("layer.tar", content), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(file)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    main()
