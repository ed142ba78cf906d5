"""The loss over a vocabulary with padding: as if the padding were not there, also on a rank that holds nothing else."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kernel_calls import COLUMNS, call, close, normal, places, vjp  # noqa: E402


@pytest.mark.parametrize(("shards", "vocabulary"), [(1, 9), (2, 9), (3, 9), (3, 4)])
def test_padding_has_no_part_in_the_loss(shards, vocabulary):
    """12 columns of which the last are padding, with large logits in it; over 3 shards and 4 tokens two shards are padding altogether."""
    logits, scale, width = 4 * normal(5, 12), 10.0, 12 // shards
    logits[:, vocabulary:] = 50.0
    labels = torch.tensor([0, vocabulary - 1, 1, 2, 3])
    parts = logits.split(width, 1)
    cut = {"logits": COLUMNS, "dlogits": COLUMNS}

    def stats(i, part):
        reads = {"logits": part, "labels": labels}
        return call("cross_entropy_stats", (5, width, vocabulary), reads, {"stats": (1, 5, 3)}, shards=cut, places=places(i, shards))

    found = torch.cat([stats(i, part) for i, part in enumerate(parts)])

    def forward(x):
        return torch.nn.functional.cross_entropy(x[:, :vocabulary], labels, reduction="sum") / scale

    close(call("cross_entropy", (5, width, scale), {"stats": found}, {"loss": (1,)}), forward(logits))
    (expected,) = vjp(forward, [logits], torch.ones(()))
    assert not expected[:, vocabulary:].any()
    for i, part in enumerate(parts):
        reads = {"logits": part, "labels": labels, "stats": found}
        mine = call("cross_entropy_grad", (5, width, scale, vocabulary), reads, {"dlogits": (5, width)}, shards=cut, places=places(i, shards))
        close(mine, expected[:, i * width : (i + 1) * width])
