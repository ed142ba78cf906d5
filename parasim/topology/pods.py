"""Networks of equal pods: putting one pod in the place of another changes no kind, bandwidth, latency or route."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .bulk import Ints


@dataclass(frozen=True)
class Pods:
    """`count` pods of `devices` devices, in order; the links of a pod lie in `blocks`: (first link of the first pod, how many every pod has there)."""

    count: int
    devices: int
    blocks: tuple[tuple[int, int], ...]

    def placed(self, links: Ints) -> tuple[Ints, Ints]:
        """The pod of every link, and the same link of the first pod."""
        first, each = np.array(self.blocks, dtype=np.int64).T
        block = np.searchsorted(first, links, side="right") - 1
        pod, place = np.divmod(links - first[block], each[block])
        return pod, first[block] + place

    def moved(self, links: Ints, pods: Ints) -> Ints:
        """Links of the first pod, as those of other `pods`."""
        first, each = np.array(self.blocks, dtype=np.int64).T
        return np.asarray(links + pods * each[np.searchsorted(first, links, side="right") - 1])
