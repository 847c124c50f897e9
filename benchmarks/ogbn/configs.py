"""What is trained on each dataset: models and hyperparameters of published examples.

OGB: ``examples/nodeproppred`` of https://github.com/snap-stanford/ogb; PyG: ``examples`` of
https://github.com/pyg-team/pytorch_geometric.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """One dataset and how it is trained.

    Attributes:
        num_nodes: Nodes of the dataset; of a heterogeneous one those with labels.
        num_pairs: Undirected edges after reverse edges are added.
        num_features: Features of a node.
        num_outputs: Classes, or tasks where there are several labels.
        model: ``sage``, ``rsage`` or ``gen``.
        layers: Number of layers.
        hidden: Width of the hidden layers.
        dropout: Share of hidden numbers dropped.
        has_norm: Whether a batch norm follows every hidden layer.
        lr: Learning rate of Adam.
        epochs: Number of epochs.
        eval_every: Epochs between evaluations.
        is_directed: Whether the dataset has its edges one way: reverse ones are added.
        reference: Whose hyperparameters they are, and what differs.
    """

    num_nodes: int
    num_pairs: int
    num_features: int
    num_outputs: int
    model: str
    layers: int
    hidden: int
    dropout: float
    has_norm: bool
    lr: float
    epochs: int
    eval_every: int
    is_directed: bool
    reference: str


CONFIGS = {
    'arxiv': Config(
        num_nodes=169_343,
        num_pairs=1_157_799,
        num_features=128,
        num_outputs=40,
        model='sage',
        layers=3,
        hidden=256,
        dropout=0.5,
        has_norm=True,
        lr=0.01,
        epochs=500,
        eval_every=1,
        is_directed=True,
        reference='OGB arxiv/gnn.py --use_sage',
    ),
    'products': Config(
        num_nodes=2_449_029,
        num_pairs=61_859_140,
        num_features=100,
        num_outputs=47,
        model='sage',
        layers=3,
        hidden=256,
        dropout=0.5,
        has_norm=False,
        lr=0.01,
        epochs=300,
        eval_every=1,
        is_directed=False,
        reference='OGB products/gnn.py --use_sage',
    ),
    'proteins': Config(
        num_nodes=132_534,
        num_pairs=39_561_252,
        num_features=8,
        num_outputs=112,
        model='gen',
        layers=28,
        hidden=64,
        dropout=0.1,
        has_norm=True,
        lr=0.01,
        epochs=1000,
        eval_every=5,
        is_directed=False,
        reference='PyG ogbn_proteins_deepgcn.py; full batch instead of 40 random clusters',
    ),
    'mag': Config(
        num_nodes=736_389,
        num_pairs=0,
        num_features=128,
        num_outputs=349,
        model='rsage',
        layers=2,
        hidden=64,
        dropout=0.5,
        has_norm=False,
        lr=0.01,
        epochs=50,
        eval_every=1,
        is_directed=True,
        reference=(
            'OGB mag/rgcn.py; types without features get a learned constant instead of an '
            'embedding per node'
        ),
    ),
    'papers100M': Config(
        num_nodes=111_059_956,
        num_pairs=1_615_685_872,
        num_features=128,
        num_outputs=172,
        model='sage',
        layers=3,
        hidden=256,
        dropout=0.0,
        has_norm=True,
        lr=0.01,
        epochs=30,
        eval_every=1,
        is_directed=True,
        reference='OGB papers100M/mlp.py, with SAGEConv in place of the linear layers',
    ),
}

SHIPPED = {
    'wordnet-noun': Config(
        num_nodes=82_115,
        num_pairs=115_310,
        num_features=512,
        num_outputs=25,
        model='sage',
        layers=2,
        hidden=64,
        dropout=0.0,
        has_norm=False,
        lr=0.01,
        epochs=40,
        eval_every=1,
        is_directed=False,
        reference='examples/data, split 60/20/20',
    ),
    'karate': Config(
        num_nodes=34,
        num_pairs=78,
        num_features=34,
        num_outputs=4,
        model='sage',
        layers=2,
        hidden=16,
        dropout=0.0,
        has_norm=False,
        lr=0.01,
        epochs=60,
        eval_every=1,
        is_directed=False,
        reference="PyG's KarateClub: 4 labelled nodes, all others for val and test",
    ),
}
"""Real graphs that need no network: of this project and of PyG."""

MAG_NODES = {'paper': 736_389, 'author': 1_134_649, 'institution': 8_740, 'field_of_study': 59_965}
MAG_EDGES = {
    ('author', 'affiliated_with', 'institution'): 1_043_998,
    ('author', 'writes', 'paper'): 7_145_660,
    ('paper', 'cites', 'paper'): 5_416_271,
    ('paper', 'has_topic', 'field_of_study'): 7_505_078,
}
