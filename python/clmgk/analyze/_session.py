# SPDX-License-Identifier: Apache-2.0
"""The program clmgk-analyze-rows, and requests to it (tools/clmgk-analyze/rows.c)."""
from __future__ import annotations

import json
import struct
import subprocess
from typing import Any, Sequence

ROWS, ANNOUNCE, PICTURE, COMMIT = range(4)


class Failure(Exception):
    """Ends the program with a status and one line; "": clmgk-analyze-rows has printed it."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message)
        self.status = status


class Session:
    """One run of clmgk-analyze-rows. `header` is its first line; {}: there is none, but `words` to print."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise Failure(4, f"{program}: {error.strerror} (a Python package built without jansson lacks it)") from None
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        self.words = self._from.readline()
        self.header: dict[str, Any] = json.loads(self.words) if self.words.startswith(b"{") else {}
        if not self.header:
            self.words += self._from.read()
        self.plots: dict[str, str] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """The program's status. Pictures that were not committed are gone."""
        try:
            self._to.close()
        except BrokenPipeError:
            pass
        status = self._process.wait()
        self._from.close()
        return status

    def _fail(self) -> Failure:
        status = self.end()
        return Failure(status) if status > 0 else Failure(4, f"clmgk-analyze-rows ended with status {status}")

    def ask(self, kind: int, data: Any, *numbers: int) -> None:
        try:
            self._to.write(struct.pack("=4q", kind, *numbers, *[0] * (3 - len(numbers))))
            self._to.write(data)
            self._to.flush()
        except BrokenPipeError:
            raise self._fail() from None

    def fill(self, values: Any) -> Any:
        """Reads an array's bytes."""
        if self._from.readinto(values.data.cast("B")) != values.nbytes:  # type: ignore[attr-defined]
            raise self._fail()
        return values

    def _do(self, kind: int, data: bytes = b"", *numbers: int) -> None:
        self.ask(kind, data, len(data), *numbers)
        if self._from.read(1) != b"\n":
            raise self._fail()

    def announce(self, name: str) -> None:
        """Checks that the picture can be written, if pictures are wanted."""
        given = self.header["given"]
        if "plots" in given:
            self._do(ANNOUNCE, name.encode())
            self.plots[name] = f"{given['plots']}-{name}.{given.get('plot-format', 'svg')}"

    def send(self, name: str, picture: bytes) -> None:
        self._do(PICTURE, picture, list(self.plots).index(name))

    def commit(self) -> None:
        self._do(COMMIT)
