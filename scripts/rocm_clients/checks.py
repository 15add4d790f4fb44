"""What each client must do under XSched, and the row of results that it gets."""

import argparse
import gzip
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from .clients import Client
from .machine import Machine, MissingRequirement
from .trial import WAYS, Failure, Pair, Processes, Run, Trial

# Launches of low priority are counted while kernels of high priority keep the GPU busy for longer than the time to react. A client that
# waits for each kernel does so only if its kernels are longer: all kernels of one run take about this long.
HIGH_WORK_US = 4_000_000
MAX_HIGH_KERNEL_US = 20_000
# Other load on the machine can delay an order. As in scripts/verify, a comparison of times is repeated; a wrong result is not.
MAX_ATTEMPTS = 3


class LateLaunches(Failure):
    """The client of low priority launched kernels later than the time to react."""


def check_output(label: str, output: str, direct: str) -> None:
    if output == direct:
        return
    differences = [(a, b) for a, b in zip(direct.splitlines(), output.splitlines(), strict=False) if a != b]
    first = f"{differences[0][0]!r} became {differences[0][1]!r}" if differences else f"{len(direct)} bytes became {len(output)}"
    raise Failure(f"{label}: the output differs: {first}")


def check_kernels(client: Client, label: str, kernels: dict[str, int], direct: dict[str, int], runs: int = 1) -> None:
    """Each kernel of the direct run must have run as often in each of the runs."""
    if client.kernels_vary:
        return
    expected = {name: runs * count for name, count in direct.items()}
    different = sorted(name for name in expected.keys() | kernels.keys() if expected.get(name) != kernels.get(name))
    if different:
        name = different[0]
        raise Failure(f"{label}: {len(different)} kernels ran more or less often: {name[:80]} {kernels.get(name, 0)} times, not {expected.get(name, 0)}")


def check_same(client: Client, label: str, run: Run, direct: Run) -> None:
    if run.status != direct.status:
        raise Failure(f"{label}: status {run.status}, direct {direct.status}: {run.output[-400:]}")
    check_output(label, run.output, direct.output)
    check_kernels(client, label, run.kernels, direct.kernels)


def check_direct(client: Client, direct: Run) -> None:
    if direct.status != client.expected_status:
        raise Failure(f"without XSched: status {direct.status}: {direct.output[-400:]}")
    if client.expected_output not in direct.output:
        raise Failure(f"without XSched: no {client.expected_output!r} in its output: {direct.output[-400:]}")
    if not direct.kernels:
        raise Failure("without XSched: it launched no kernel")


def check_pair(client: Client, pair: Pair, direct: Run) -> None:
    check_same(client, "of high priority beside one of low priority", pair.high, direct)
    if not pair.was_high_listed:
        raise Failure("of high priority: XSched did not list it")
    if pair.low_status != direct.status:
        raise Failure(f"of low priority: status {pair.low_status}, direct {direct.status}: {''.join(pair.low_outputs)[-400:]}")
    if not pair.low_outputs:
        raise Failure("of low priority: it did not run")
    for output in pair.low_outputs:
        check_output("of low priority", output, direct.output)
    check_kernels(client, "of low priority", pair.low_kernels, direct.kernels, len(pair.low_outputs))
    if client.ranks > 1 and pair.ranks_held_together != client.ranks:
        raise Failure(f"of low priority: {pair.ranks_held_together} ranks of the job were held together, not {client.ranks}")
    if pair.checked_seconds == 0 and not client.short_work:
        raise Failure("of high priority: its kernels kept the GPU busy for no longer than the time to react, so no launch could be counted")
    if pair.launches_during_high > 0:
        raise LateLaunches(f"of low priority: {pair.launches_during_high} launches while the one of high priority had work")


def high_kernel_us(kernel_us: int, kernels: int) -> int:
    """How long a kernel of the client of high priority takes beside one of low priority."""
    return max(kernel_us, min(MAX_HIGH_KERNEL_US, HIGH_WORK_US // kernels))


def run_way(trial: Trial, client: Client, way: str, direct: Run, options: argparse.Namespace, row: dict) -> None:
    run, tasks = trial.scheduled(way, options.level)
    row |= {"xsched": run.status, "seconds": round(run.seconds, 2), "is_same_output": run.output == direct.output, "is_listed": bool(tasks)}
    row["kernels"], row["are_same_kernels"] = sum(run.kernels.values()), run.kernels == direct.kernels
    row["level"] = max((task["level"] or 0 for task in tasks), default=None)
    check_same(client, "under XSched", run, direct)
    if not tasks:
        raise Failure("XSched did not list it")
    if f"HIP is scheduled by {WAYS[way]}" not in run.log:
        raise Failure(f"not intercepted by {WAYS[way]}: {run.log[-300:]}")
    if not client.has_pair or options.no_pairs:
        return
    for attempt in range(1, MAX_ATTEMPTS + 1):
        pair = trial.pair(way, options.level, high_kernel_us(options.kernel_us, sum(direct.kernels.values())))
        row |= {
            "pairs": attempt, "low_runs": len(pair.low_outputs), "low_launches": sum(pair.low_kernels.values()),
            "low_launches_during_high": pair.launches_during_high, "checked_seconds": round(pair.checked_seconds, 4),
            "ranks_held_together": pair.ranks_held_together,
        }
        try:
            check_pair(client, pair, direct)
            return
        except LateLaunches:
            if attempt == MAX_ATTEMPTS:
                raise


def run_client(machine: Machine, client: Client, processes: Processes, options: argparse.Namespace, say: Callable[[str], None]) -> list[dict]:
    """The rows of a client: one for each way in which it is intercepted, or one if it did not run."""
    row = {"client": client.name, "package": client.package, "hip": client.root, "kernels_vary": client.kernels_vary, "short_work": client.short_work}
    try:
        client.check_requirements(machine)
    except MissingRequirement as reason:
        return [row | {"result": "skipped", "reason": str(reason)}]
    started = time.monotonic()
    rows: list[dict] = []

    def finish(row: dict, reason: str) -> None:
        rows.append(row | ({"result": "failed", "reason": reason} if reason else {"result": "passed"}))
        way = f" by {row['way']}" if "way" in row else ""
        say(f"{client.name}{way}: {rows[-1]['result']} after {time.monotonic() - started:.0f} s{reason and ': '}{reason}")

    def attempt(function: Callable[[], None]) -> str:
        """The reason why the function failed, or an empty text. A fault in these scripts is a failure of one client."""
        try:
            function()
            return ""
        except Failure as failure:
            return str(failure)
        except Exception as error:  # pylint: disable=broad-except
            say(traceback.format_exc())
            return f"the check itself failed: {type(error).__name__}: {error}"

    def run_directly() -> None:
        nonlocal trial, direct
        row["version"] = version_of(machine, client)
        trial = Trial(machine, client, processes, machine.directory / "trials" / client.name)
        direct = trial.direct()
        row.update({"direct": direct.status, "direct_seconds": round(direct.seconds, 2)})
        check_direct(client, direct)

    trial = direct = None
    reason = attempt(run_directly)
    if reason:
        finish(row, reason)
        return rows
    for way in client.ways:
        if not options.way or way == options.way:
            of_way = row | {"way": way}
            finish(of_way, attempt(lambda way=way, of_way=of_way: run_way(trial, client, way, direct, options, of_way)))
    return rows


def version_of(machine: Machine, client: Client) -> str:
    """The version of a Debian package is in the first line of its changelog; that of a Python package in its directory's name."""
    versions = []
    for package in client.package.split(", "):
        roots = [root for root in (machine.roots[client.root], *machine.roots.values()) if root]
        versions += next(filter(None, (found for root in roots for found in (debian_version(root, package), python_version(root, package)))), None) or []
    return ", ".join(versions)


def debian_version(root: Path, package: str) -> list[str]:
    changelog = root / "root/usr/share/doc" / package / "changelog.Debian.gz"
    if not changelog.exists():
        return []
    with gzip.open(changelog, "rt", errors="replace") as file:
        return [file.readline().partition("(")[2].partition(")")[0]]


def python_version(root: Path, package: str) -> list[str]:
    names = [place.name.removesuffix(".dist-info").split("-") for place in root.glob("python/*/*.dist-info")]
    return [name[1] for name in names if name[0].replace("_", "-") == package][:1]
