"""What a cluster file of the wrong form is answered with."""

from pathlib import Path

import pytest

from parasim.errors import Malformed
from parasim.topology.loader import load_cluster


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: 4\n", r"nodes: 4 is not a list of \{id, kind\} .* servers that are alike go under node: \{count, devices, scale_up\}"),
        ("node: 8\n", r"node: 8 is not a mapping, \{key: value, ...\}"),
    ],
)
def test_a_number_where_servers_are_due(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(f"name: x\naccelerator: a100-sxm-80\n{text}")
    with pytest.raises(Malformed, match=said):
        load_cluster(tmp_path / "c.yaml", 8)
