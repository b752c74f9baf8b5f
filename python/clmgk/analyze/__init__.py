# SPDX-License-Identifier: Apache-2.0
"""``python -m clmgk.analyze``, installed as the program clmgk-analyze: the papers' analyses of attention matrices.

The program clmgk-analyze-rows reads the command line and the arrays, and computes the matrices (_session.py). The
package holds the analyses (_matrices.py), the theorems' checks (_theorems.py) and pictures (_pictures.py). It is also
installed alone, without the library's other modules.
"""
from __future__ import annotations

import importlib
import json
import math
import os
import pathlib
import signal
import sys
from typing import Any, Sequence

from ._session import Failure, Session

_FORMATS = ("svg", "png", "pdf")
_OF_BOTH = ("theorems", "json", "plots", "plot-format", "seed")
_OF_THEOREMS = ("device", "tokens", "trials")


def _need(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise Failure(4, f"needs NumPy and, for pictures, Matplotlib (Debian: python3-numpy, python3-matplotlib; PyPI: "
                             f"clmgk[analyze]): {error}") from None


def _check(given: dict[str, str]) -> None:
    """Refuses options of the other mode, and pictures that cannot be drawn."""
    theorems = "theorems" in given
    for option in given:
        if theorems and option not in _OF_BOTH + _OF_THEOREMS or not theorems and option in _OF_THEOREMS:
            reason = ": matrices are computed on the host" if option == "device" else ""
            raise Failure(2, f"--{option} does not apply {'with' if theorems else 'without'} --theorems{reason}")
    if given.get("plot-format", "svg") not in _FORMATS:
        raise Failure(2, f"--plot-format '{given['plot-format']}': expected one of {', '.join(_FORMATS)}")
    if "plot-format" in given and "plots" not in given:
        raise Failure(2, "--plot-format needs --plots")


def _rounded(value: Any) -> Any:
    """Numbers of JSON: nine digits, null where they are not finite."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _put(words: bytes) -> None:
    """Writes to standard output. A reader that needs no more ends the program, as it ends others."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        while words:
            words = words[os.write(1, words):]
    except OSError as error:
        raise Failure(4, f"standard output: {error.strerror}") from None


def _run(arguments: Sequence[str], rows: str, run: str | None) -> int:
    with Session(rows, arguments) as session:
        if not session.header:
            _put(session.words)
            return session.end()
        given = session.header["given"]
        _check(given)
        _need("numpy", *(["matplotlib"] if "plots" in given else []))
        if "theorems" in given:
            from ._theorems import Theorems
            found: Any = Theorems(session, run)
        else:
            from ._matrices import Matrices
            found = Matrices(session)
        report = found.solve()
        session.commit()
        text = json.dumps(_rounded(report), indent=2, ensure_ascii=False) + "\n" if "json" in given else found.words(report)
        _put(text.encode(errors="replace"))
        found.judge()
    return 0


def main(arguments: Sequence[str] | None = None, rows: str | None = None, run: str | None = None) -> int:
    """Runs the program; returns its exit status.

    `rows` is the path of clmgk-analyze-rows, `run` that of clmgk-run, which computes attention on the device where the
    package is installed alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, whatever NumPy is at; clmgk-analyze-rows removes files
    try:
        return _run(sys.argv[1:] if arguments is None else arguments,
                    rows or str(pathlib.Path(__file__).with_name("clmgk-analyze-rows")), run)
    except MemoryError:
        failure = Failure(4, "out of memory")
    except Failure as found:
        failure = found
    if str(failure):
        print(f"clmgk-analyze: {failure}", file=sys.stderr)
    return failure.status
