"""`parasim import` writes a cluster file that `parasim run` accepts; what is cut short is refused; `parasim plot cluster` draws it."""

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data/topology"
RUN = """\
model: {{kind: fixed, layers: 1, forward: 1 ms, input_grad: 1 ms, weight_grad: 1 ms, parameters: 1e8}}
cluster: {0}
devices: 4
batch: {{global: 4}}
precision: fp16
"""


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir()))
def test_an_imported_cluster_runs_and_is_drawn(cli, tmp_path, name):
    cluster, picture = tmp_path / "cluster.yaml", tmp_path / "cluster.svg"
    answer = cli("import", DATA / name, "--out", cluster)
    assert answer.code == 0, answer.err
    (tmp_path / "run.yaml").write_text(RUN.format("cluster.yaml"))
    report = json.loads(cli("run", tmp_path / "run.yaml", "--json").out)
    assert report["world_size"] == 4 and report["time_s"]["exposed"]["dp"] > 0
    assert cli("plot", "cluster", cluster, "--out", picture).code == 0
    assert picture.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("name", ["h200-4gpu.xml", "a100-pcie-pairs.xml"])
def test_an_xml_that_is_cut_short_is_refused_with_its_line(cli, tmp_path, name):
    text = (DATA / name).read_text()
    (tmp_path / "cut.xml").write_text(text[: len(text) // 2])
    answer = cli("import", tmp_path / "cut.xml", "--kind", "nccl-xml", "--out", tmp_path / "cluster.yaml")
    assert answer.code == 3 and "cut.xml:" in answer.err
    assert not (tmp_path / "cluster.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nothing.txt"], "nothing.txt"), ([DATA / "tree.conf", "--kind", "slrum"], "nearest: slurm"), ([DATA / "dgx1-v100.txt", "--accelerator", "v10"], "v100")],
)
def test_wrong_flags_are_named(cli, tmp_path, arguments, words):
    answer = cli("import", *arguments, "--out", tmp_path / "cluster.yaml")
    assert answer.code == 2 and words in answer.err
