# SPDX-License-Identifier: Apache-2.0
"""The source distribution (python/from_top.py)."""
import pathlib
import subprocess
import sys
import tarfile

import clmgk

TOP = pathlib.Path(__file__).resolve().parents[2]


def make(folder, date):
    folder.mkdir()
    script = f"import sys; sys.path.insert(0, {str(TOP / 'python')!r}); import from_top; from_top.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-B", "-c", script], env={"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": str(date)},
                   check=True, stdout=subprocess.DEVNULL)
    return next(folder.iterdir())


def test_source_distribution(tmp_path):
    first, again = make(tmp_path / "first", 1_700_000_000), make(tmp_path / "again", 1_700_000_000)
    assert first.name == f"clmgk-{clmgk.__version__}.tar.gz"
    assert first.read_bytes() == again.read_bytes()
    with tarfile.open(first) as archive:
        members = {member.name.split("/", 1)[1]: member for member in archive}
        metadata = archive.extractfile(members["PKG-INFO"]).read().decode()
    assert f"\nVersion: {clmgk.__version__}\n" in metadata
    assert {member.mtime for member in members.values()} == {1_700_000_000}
    needed = [path.relative_to(TOP) for folder in ("cl", "cmake", "include", "src", "tools", "python/clmgk", "python/native")
              for path in (TOP / folder).rglob("*") if path.suffix in (".c", ".h", ".cl", ".clh", ".cmake", ".py", ".in")]
    assert not {str(path) for path in needed} - members.keys()
    assert not [name for name in members if name.endswith((".so", ".pyc"))]
    assert members["python/wheels.sh"].mode & 0o111
