"""Rings over the direct scale-up cables of one server: where devices have no common switch, one ring uses few of the cables, several use them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .cluster import Cluster

TRIES = 20_000  # steps of a search; what was found until then counts


def rings(cluster: Cluster, devices: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Rings through all `devices`, neighbours joined directly, that share no cable: each begins with the first device.

    The narrowest cable between two devices is one; a wider one counts as several, as two NVLinks beside one do. A direction of a cable is in at
    most one ring, so that R rings reach R times the bandwidth of one. Empty where no ring of direct cables passes all devices.
    """
    if all(cluster.between(devices[0], b) is None for b in devices):  # behind a switch: without a look at all pairs
        return ()
    joined = [cluster.links[i] for a in devices for b in devices if (i := cluster.between(a, b)) is not None]
    direct = {(link.a, link.b): link.bandwidth for link in joined if link.kind == "scale_up"}
    if not direct:
        return ()
    unit = min(direct.values())
    cables = {pair: int(bandwidth / unit + 1e-9) for pair, bandwidth in direct.items()}
    most = min(sum(cables.get((a, b), 0) for b in devices) for a in devices)
    best: list[tuple[str, ...]] = []
    for found in _search(tuple(devices), cables, [], [TRIES]):
        if len(found) > len(best):
            best = found
        if len(best) == most:
            break
    return tuple(best)


def _search(devices: tuple[str, ...], cables: dict[tuple[str, str], int], found: list[tuple[str, ...]], left: list[int]) -> Iterator[list[tuple[str, ...]]]:
    """Sets of rings that grow ring by ring; a set that cannot grow gives back its last ring."""
    yield list(found)
    for ring in _one(devices, cables, (devices[0],), left):
        edges = list(zip(ring, (*ring[1:], ring[0]), strict=True))
        for edge in edges:
            cables[edge] -= 1
        yield from _search(devices, cables, [*found, ring], left)
        for edge in edges:
            cables[edge] += 1
        if left[0] <= 0:
            return


def _one(devices: tuple[str, ...], cables: dict[tuple[str, str], int], path: tuple[str, ...], left: list[int]) -> Iterator[tuple[str, ...]]:
    """Every ring that begins with `path`, over cables that are left, the device with the fewest ways on first."""
    left[0] -= 1
    if left[0] <= 0:
        return
    if len(path) == len(devices):
        if cables.get((path[-1], path[0]), 0) > 0:
            yield path
        return
    rest = [d for d in devices if d not in path]
    onward = sorted((d for d in rest if cables.get((path[-1], d), 0) > 0), key=lambda d: sum(cables.get((d, e), 0) > 0 for e in rest))
    for device in onward:
        yield from _one(devices, cables, (*path, device), left)
