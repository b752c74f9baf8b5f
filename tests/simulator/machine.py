# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's machine code: the compilers that make it (tests/offline/compile.py, `offline` here), and nvdisasm's text of it."""
import dataclasses
import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "offline"))
import compile as offline  # noqa: E402

ARCHITECTURE = "sm_90"


def parse(parser):
    """Adds the options that choose compilers. The arguments, and ptxas and nvdisasm; None: it said what is missing."""
    parser.add_argument("--ptxas", help="in place of the toolkit's")
    parser.add_argument("--nvcc", action="store_true", help="PTX by nvcc, nearly that of the OpenCL driver, instead of clang's")
    arguments = parser.parse_args()
    missing, tools = find_tools(arguments.ptxas)
    if arguments.nvcc:
        missing = missing or offline.Cuda(ARCHITECTURE).missing()
    if missing:
        print(f"skipped: {missing} is not there")
    return arguments, None if missing else tools


def find_tools(ptxas=None):
    """What is missing, and ptxas and nvdisasm."""
    missing = offline.Nvidia(ARCHITECTURE).missing()
    tools = [None, None] if missing else [ptxas or offline.fetch_cuda("ptxas"), offline.fetch_cuda("nvdisasm")]
    names = [name for name, tool in zip(("ptxas", "nvdisasm"), tools) if tool is None]
    return missing or (names[0] if names else None), tools


@dataclasses.dataclass
class Instruction:
    address: int
    guard: str  # @P0, @!UP1 or nothing
    name: str
    operands: str


@dataclasses.dataclass
class Kernel:
    name: str
    instructions: list
    labels: dict


def read_kernels(listing):
    """The kernels in nvdisasm's text."""
    kernels = []
    for line in listing.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        label = re.match(r"(\.L\w+|\$[\w$]+):", line)
        code = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;", line)
        if section:
            kernels.append(Kernel(section[1], [], {}))
        elif kernels and label:
            kernels[-1].labels[label[1]] = kernels[-1].instructions[-1].address + 16 if kernels[-1].instructions else 0
        elif kernels and code:
            kernels[-1].instructions.append(Instruction(int(code[1], 16), code[2] or "", code[3], code[4]))
    return kernels


def section_of(cubin, name):
    """The bytes of an ELF file's section; none if it is not there."""
    data = pathlib.Path(cubin).read_bytes()
    table, size, count, names = *struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HHH", data, 0x3a)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        if data[start:data.index(b"\0", start)].decode() == name:
            return data[header[4]:header[4] + header[5]]
    return b""
