"""What a compiled kernel makes an SM do, read from its machine code: instructions by loop, and what fits beside it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import triton

SCHEDULERS = 4
"""The schedulers of an SM, each of which issues one warp's instruction per cycle."""

REGISTERS, WARPS, CTAS = 65536, 64, 32
"""The registers, warps and programs that an SM of sm_80, sm_90 and sm_100 holds at most."""

SHARED = {"sm_80": 164, "sm_90": 228, "sm_100": 228}
"""KB of shared memory of an SM, of which each CTA takes one for itself."""


@dataclass(frozen=True)
class Loop:
    """A loop's instructions, without those of the loops in it, and in how many it lies."""

    instructions: int
    depth: int


@dataclass(frozen=True)
class Code:
    """A kernel's instructions: those outside of loops as depth 0, then each loop's."""

    loops: Sequence[Loop]
    local: int  # that read or write the stack, where what has no register goes

    def issued(self, passes: Sequence[float]) -> float:
        """The instructions of one warp that passes through what lies in i loops passes[i] times."""
        return sum(loop.instructions * passes[loop.depth] for loop in self.loops)


def code_of(cubin: bytes) -> Code:
    """Disassemble, and find the loops by the branches that lead back. A slow path behind the end is not counted."""
    lines = _tool("nvdisasm", "-c", cubin=cubin).splitlines()
    places: dict[str, int] = {}
    names: list[str] = []  # of the instructions
    back: list[tuple[int, int]] = []
    for line in lines:
        if label := re.match(r"(\.L_x_\d+):", line):
            places[label[1]] = len(names)
        elif "$__internal" in line.split(":")[0] and line.endswith(":"):
            break
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)(.*)", line):
            target = re.search(r"`\((\.L_x_\d+)\)", found[2])
            if found[1].startswith("BRA") and target and places.get(target[1], len(names)) < len(names):
                back.append((places[target[1]], len(names)))
            names.append(found[1])
    depths = [sum(first <= at <= last for first, last in back) for at in range(len(names))]
    loops = [Loop(depths.count(0), 0)]
    for first, last in back:
        inner = [(f, t) for f, t in back if first <= f and t <= last and (f, t) != (first, last)]
        own = [at for at in range(first, last + 1) if not any(f <= at <= t for f, t in inner)]
        loops.append(Loop(len(own), depths[own[-1]]))
    return Code(loops, sum(name.startswith(("LDL", "STL")) for name in names))


def ctas_per_sm(target: str, warps: int, registers: int, shared_bytes: int) -> int:
    """Count the programs that an SM runs at once. A warp gets registers by 256, a program memory by 128 bytes."""
    of_a_warp = -(-32 * registers // 256) * 256
    shared = -(-(shared_bytes + 1024) // 128) * 128
    return min(CTAS, WARPS // warps, REGISTERS // of_a_warp // warps, SHARED[target] * 1024 // shared)


def usage(cubin: bytes) -> tuple[int, int]:
    """(registers of a thread, bytes of its stack and local memory)"""
    text = _tool("cuobjdump", "-res-usage", cubin=cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2]) + int(found[3])


def _tool(name: str, *options: str, cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, *options, file.name], check=True, capture_output=True, text=True).stdout
