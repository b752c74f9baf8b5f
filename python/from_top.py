# SPDX-License-Identifier: Apache-2.0
"""The build backend of the repository's top folder: scikit-build-core, run in this folder. A source distribution has the
top folder's files that a wheel is built from; scikit-build-core would take this folder's alone."""
import gzip
import io
import os
import pathlib
import tarfile
import tempfile

os.chdir(pathlib.Path(__file__).parent)

from scikit_build_core.build import *  # noqa: E402,F403
from scikit_build_core.build import prepare_metadata_for_build_wheel  # noqa: E402

PARTS = ("CHANGELOG.md", "CMakeLists.txt", "LICENSE", "README.md", "cl", "cmake", "include", "pyproject.toml", "python",
         "src", "tools")


def _files(top):
    """The distribution's files: no hidden ones, and nothing that a build or a test made."""
    for part in PARTS:
        for path in [top / part, *(top / part).rglob("*")]:
            name = path.relative_to(top)
            made = path.suffix in (".pyc", ".so") or any(word.startswith(".") for word in name.parts)
            if path.is_file() and not made:
                yield name


def _metadata(config_settings):
    with tempfile.TemporaryDirectory() as folder:
        return (pathlib.Path(folder) / prepare_metadata_for_build_wheel(folder, config_settings) / "METADATA").read_bytes()


def build_sdist(sdist_directory, config_settings=None):
    """The same bytes for the same files: sorted, without owners, dated by SOURCE_DATE_EPOCH."""
    top = pathlib.Path.cwd().parent
    metadata = _metadata(config_settings)
    version = next(line for line in metadata.decode().splitlines() if line.startswith("Version: ")).split()[1]
    files = {str(name): (top / name).read_bytes() for name in _files(top)}
    files["PKG-INFO"] = metadata
    date = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
    result = pathlib.Path(sdist_directory) / f"clmgk-{version}.tar.gz"
    with result.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as packed:
        with tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive:
            for name, content in sorted(files.items()):
                member = tarfile.TarInfo(f"clmgk-{version}/{name}")
                runs = name != "PKG-INFO" and os.access(top / name, os.X_OK)
                member.size, member.mtime, member.mode = len(content), date, 0o755 if runs else 0o644
                archive.addfile(member, io.BytesIO(content))
    return result.name
