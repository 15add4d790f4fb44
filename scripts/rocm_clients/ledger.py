"""Reads the ledger of the ROCr stand-in: one line per completed packet (see standins/rocr/src/ledger.rs)."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from reaction import REACTION_NS

# The device needs this long from one queued kernel to the next. In a longer gap the task may have been reported idle.
IDLE_GAP_NS = 20_000


@dataclass
class Ledger:
    """The kernels of some processes: name, submission, start and end in nanoseconds, and the GPU."""

    kernels: list[tuple[str, int, int, int, int]]

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        kernels = []
        if path.exists():
            for line in path.read_text(errors="replace").splitlines():
                fields = line.split(" ")
                if len(fields) >= 11 and fields[3] == "kernel":
                    kernels.append((fields[4], int(fields[10]), int(fields[6]), int(fields[7]), int(fields[8])))
        return cls(kernels)

    def kernel_counts(self) -> dict[str, int]:
        return dict(Counter(name for name, *_ in self.kernels))

    def work(self) -> list[tuple[int, int, int]]:
        """The intervals during which a GPU ran kernels, with the GPU; between them it was not idle."""
        intervals: list[list[int]] = []
        for gpu, start, end in sorted((kernel[4], kernel[2], kernel[3]) for kernel in self.kernels):
            if intervals and gpu == intervals[-1][2] and start <= intervals[-1][1] + IDLE_GAP_NS:
                intervals[-1][1] = max(intervals[-1][1], end)
            else:
                intervals.append([start, end, gpu])
        return [(start, end, gpu) for start, end, gpu in intervals]

    def checked_seconds(self) -> float:
        """How long a GPU ran these kernels without a gap, less the time to react."""
        return sum(max(0, end - start - REACTION_NS) for start, end, _ in self.work()) / 1e9

    def launched_during_work_of(self, other: "Ledger") -> int:
        """How many kernels were launched while their GPU ran those of the other, after the time to react."""
        intervals = [(start + REACTION_NS, end, gpu) for start, end, gpu in other.work() if end - start > REACTION_NS]
        return sum(1 for kernel in self.kernels for start, end, gpu in intervals if kernel[4] == gpu and start < kernel[1] < end)
