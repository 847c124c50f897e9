"""The published scripts of PyG, and the lines of them that change."""

from __future__ import annotations

from typing import Any

from scripts import Edit, Script


def _planetoid(name: str, end: int, **more: object) -> Script:
    return Script(f'examples/{name}.py', loop=f'range(1, {end})', **more)  # type: ignore[arg-type]


def _entities(name: str) -> Script:
    return Script(
        'examples/rgcn.py',
        f'--dataset {name}',
        loop='range(1, 51)',
    )


FULL_BATCH = [
    _planetoid('agnn', 201),
    _planetoid('arma', 401),
    Script('examples/gat.py', '--epochs 3', label=''),
    Script('examples/gcn.py', '--epochs 3', label=''),
    Script('examples/gcn.py', '--epochs 3 --use_gdc', label='--use_gdc'),
    _planetoid('tagcn', 201),
    _planetoid('mixhop', 101),
    _planetoid('sgc', 101),
    _planetoid('pmlp', 201),
    _planetoid('linkx', 201),
    _planetoid('super_gat', 501),
    Script('examples/dir_gnn.py', '--epochs 3', label=''),
    Script(
        'examples/dir_gnn.py', '--epochs 3 --alpha 0.5 --conv sage', label='--alpha 0.5 --conv sage'
    ),
    _planetoid('gcn2_cora', 1001),
    Script(
        'examples/label_prop.py',
        wraps=(),
    ),
    Script(
        'examples/correct_and_smooth.py',
        loop='range(1, 301)',
        plain=(
            ('if not WITH_TORCH_SPARSE:', 'if False:'),
            ('transform=T.ToSparseTensor())', 'transform=T.ToUndirected())'),
            ('adj_t = data.adj_t.to(device)', 'row, col = edge_index = data.edge_index'),
            (
                'adj_t.sum(dim=1).to(torch.float)',
                'torch.ones_like(x[:, 0]).index_add(0, col, torch.ones_like(x[:, 0])[col])',
            ),
            ('view(-1, 1) * adj_t * deg_inv_sqrt.view(1, -1)', 'view(-1)[row] * deg_inv_sqrt[col]'),
            (
                'deg_inv_sqrt.view(-1, 1) * deg_inv_sqrt.view(-1, 1) * adj_t',
                'deg_inv_sqrt[col] * deg_inv_sqrt[col]',
            ),
            ('train_idx, DAD)', 'train_idx, edge_index, DAD)'),
            ('train_idx, DA)', 'train_idx, edge_index, DA)'),
        ),
        note='`edge_index` in place of a matrix of torch_sparse',
    ),
    _planetoid('unimp_arxiv', 501),
    Script(
        'examples/glnn.py',
        plain=(
            ('range(1, 201)', 'range(1, 4)'),
            ('range(1, 501)', 'range(1, 4)'),
            ('epoch % 20', 'epoch % 1', 2),
        ),
        wraps=(('gnn', 'gnn_optimizer = '), ('mlp', 'mlp_optimizer = ')),
    ),
    _planetoid(
        'dna',
        201,
    ),
    _planetoid(
        'infomax_transductive',
        301,
    ),
    _planetoid(
        'rect',
        201,
        plain=(('RECT_L(200, 200,', 'RECT_L(16, 16,'),),
        wraps=(('model', 'criterion = '),),
    ),
    _planetoid('graph_unet', 201, plain=(('2000 / data', '60 / data'),)),
    Script(
        'examples/ogc.py',
        loop='range(1, 65)',
        wraps=(('model', 'def update_U'),),
    ),
    _planetoid('sign', 201),
]


LINKS = [
    *(
        Script('examples/autoencoder.py', f'--epochs 3 {more}'.strip(), label=more, graphs=3)
        for more in ('', '--variational', '--linear', '--variational --linear')
    ),
    _planetoid(
        'link_pred',
        101,
        graphs=3,
    ),
    _planetoid(
        'argva_node_clustering',
        151,
        graphs=3,
        wraps=(('model', 'encoder_optimizer = '),),
    ),
    *(
        Script(
            'examples/ar_link_pred.py',
            f'--epochs 3 {more}'.strip(),
            label=more,
            plain=(('epoch % 10', 'epoch % 1'),),
            wraps=(('encoder', 'optimizer = '),),
        )
        for more in ('', '--use_ar')
    ),
    Script(
        'examples/rgcn_link_pred.py',
        loop='range(1, 10001)',
        plain=(
            ('RGCNEncoder(data.num_nodes, 500,', 'RGCNEncoder(data.num_nodes, 20,'),
            ('num_relations // 2, 500)', 'num_relations // 2, 20)'),
            ('epoch % 500', 'epoch % 3'),
        ),
    ),
    Script(
        'examples/lightgcn.py',
        loop='range(1, 101)',
        plain=(('batch_size = 8192', 'batch_size = 64'),),
        loads=('data.to_homogeneous()',),
    ),
    *(
        Script(
            'examples/kge_fb15k_237.py',
            f'--model {model}',
            loop='range(1, 501)',
            plain=(('epoch % 25', 'epoch % 3'), ('batch_size=1000', 'batch_size=50')),
            loads=("FB15k_237(path, split='train')[0]",),
            wraps=(('model', 'loader = '),),
        )
        for model in ('transe', 'complex', 'distmult', 'rotate')
    ),
]

HETERO = [
    Script('examples/hetero/han_imdb.py', loop='range(1, 200)'),
    Script('examples/hetero/hetero_conv_dblp.py', loop='range(1, 101)'),
    Script(
        'examples/hetero/hgt_dblp.py',
        loop='range(1, 101)',
        wraps=(('model', 'if torch.cuda.is_available():'),),
        note='wrapped before the dry run of its lazy layers',
    ),
    Script('examples/hetero/hetero_link_pred.py', loop='range(1, 301)'),
    Script('examples/hetero/hetero_link_pred.py', '--use_weighted_loss', loop='range(1, 301)'),
    Script(
        'examples/hetero/bipartite_sage.py',
        loop='range(1, 701)',
        plain=(
            (
                "test_data['movie', 'metapath_0', 'movie'].edge_index = edge_index",
                "test_data['movie', 'metapath_0', 'movie'].edge_index = edge_index\n"
                'train_data, val_data, test_data = (train_data, val_data, test_data)',
            ),
        ),
        loads=('= (train_data, val_data, test_data)',),
        graphs=3,
    ),
    Script(
        'examples/hetero/dmgi_unsup.py',
        loop='range(1, 1001)',
        plain=(('epoch % 50', 'epoch % 1'),),
        loads=('T.AddMetaPaths(metapaths, drop_orig_edge_types=True)(dataset[0])',),
    ),
]

_SMALL_SPLITS: tuple[Edit, ...] = (
    ('[i[:20] for', '[i[:8] for'),
    ('[i[20:] for', '[i[8:] for'),
    ('rest_index[:500]', 'rest_index[:40]'),
    ('rest_index[500:1500]', 'rest_index[40:]'),
)


_EXPLAINED: tuple[Edit, ...] = (
    (
        'explainer = Explainer(',
        'with torch.random.fork_rng():\n    plain = GCN()\n'
        'plain.load_state_dict(model.state_dict())\nexplainer = Explainer(',
    ),
    ('    model=model,', '    model=plain,'),
    ('explainer(data.x, data.edge_index,', 'explainer(dataset[0].x, dataset[0].edge_index,'),
)

OTHERS = [
    *(_entities(name) for name in ('AIFB', 'BGS')),
    _planetoid(
        'rgat',
        51,
        plain=(
            (
                'optimizer = ',
                'model.conv1.l2.data.fill_(0.1); model.conv2.l2.data.fill_(0.1)\noptimizer = ',
            ),
        ),
        note='`l2`, which RGATConv leaves unset, is filled in all runs',
    ),
    Script(
        'examples/wl_kernel.py',
        '--runs 1',
        loads=('Batch.from_data_list(dataset)',),
        wraps=(),
    ),
    Script(
        'examples/signed_gcn.py',
        loop='range(101)',
        plain=(
            ('for data in dataset:', 'for data in [dataset[0]]:'),
            ('model(x, ', 'model(x.double(), ', 2),
        ),
        wraps=(('model', 'optimizer = '),),
        note='one window of time',
    ),
    Script(
        'examples/ogbn_proteins_deepgcn.py',
        loop='range(1, 1001)',
        plain=(
            ('RandomNodeLoader(data, num_parts=40, shuffle=True,', '[data]; dict('),
            ('RandomNodeLoader(data, num_parts=5,', '[data]; dict('),
            ('num_layers=28)', 'num_layers=6)'),
        ),
        note='full batch in place of `RandomNodeLoader`',
    ),
    Script(
        'examples/rev_gnn.py',
        loop='range(1, 1001)',
        plain=(
            ('RandomNodeLoader(data, num_parts=10, shuffle=True,', '[data]; dict('),
            ('RandomNodeLoader(data, num_parts=1,', '[data]; dict('),
        ),
        note='full batch in place of `RandomNodeLoader`',
    ),
    _planetoid(
        'tensorboard_logging',
        201,
        plain=(
            (
                'from torch.utils.tensorboard import SummaryWriter',
                'from unittest.mock import MagicMock as SummaryWriter',
            ),
        ),
        note='with a writer that does nothing',
    ),
    Script(
        'examples/compile/gcn.py',
        loop='range(1, 201)',
        plain=(('dynamic=False)', 'dynamic=False, backend="eager")'),),
        note="backend `'eager'`",
    ),
    Script(
        'examples/jit/gcn.py',
        loop='range(1, 201)',
        more=(('torch.jit.script(model)', 'model'),),
        why='without `torch.jit.script`',
    ),
    Script('examples/jit/gat.py', loop='range(1, 201)'),
    Script(
        'examples/multi_gpu/model_parallel.py',
        loop='range(1, 201)',
        plain=(
            ('torch.cuda.device_count() < 2', 'False'),
            ("'cuda:0'", "'cpu'", 4),
            ("'cuda:1'", "'cpu'"),
        ),
        note='on the CPU',
    ),
    Script(
        'examples/explain/gnn_explainer.py',
        loop='range(1, 201)',
        plain=(('epochs=200', 'epochs=5'),),
        more=_EXPLAINED,
        why='a plain model is explained on the plain graph',
    ),
]

CITATION = [
    Script(
        f'benchmark/citation/{name}.py',
        f'--dataset Cora --runs 2 --epochs 3 {more}{splits}'.strip(),
        label=splits,
        beside=('__init__.py', 'train_eval.py', 'datasets.py'),
        plain=_SMALL_SPLITS,
        loads=('        data = dataset[0]',),
        wraps=(('model', 'for run in range(runs):'),),
    )
    for name, more in (
        ('gcn', ''),
        ('gat', ''),
        ('arma', ''),
        ('cheb', '--num_hops 3 '),
        ('appnp', ''),
        ('sgc', ''),
    )
    for splits in ('', '--random_splits')
]

INFERENCE = [
    Script(
        'benchmark/inference/inference_benchmark.py',
        f'--datasets Reddit --models {model} --full-batch --evaluate --num-layers 2 '
        '--num-hidden-channels 16 --eval-batch-sizes 512',
        label=f'--models {model}',
        plain=(
            (
                'y = full_batch_inference(model, data)',
                'y = full_batch_inference(model, data); print(float(y.square().sum()))',
            ),
        ),
        loads=('dataset.to(device)',),
        wraps=(('model', '                        model.eval()'),),
        note='prints the sum of squares of the outputs, too',
    )
    for model in ('edge_cnn', 'gat', 'gcn', 'sage')
]


def _proteins(name: str, options: str = '', **more: Any) -> Script:
    """A script that trains on batches of graphs; a batch of all of them is cut."""
    edits = more.pop('plain', ())
    loads = [
        f'DataLoader({split}_dataset, batch_size=2, shuffle={split == "train"})'
        for split in ('train', 'val', 'test')
    ]
    return Script(
        f'examples/{name}.py',
        options,
        loads=tuple(loads),
        plain=edits,
        more=more.pop('more', (('len(train_loader.dataset)', '2'),)),
        why='the number of graphs is written out',
        note='one batch of two graphs',
        **more,
    )


_TWO: Edit = ('batch_size=1,', 'batch_size=2,')

PROTEINS = [
    _proteins('film', loop='range(1, 501)'),
    _proteins('ppi', loop='range(1, 101)', plain=(_TWO,)),
    *(
        _proteins('geniepath', f'--model {model}', loop='range(1, 101)', plain=(_TWO,))
        for model in ('GeniePath', 'GeniePathLazy')
    ),
    _proteins(
        'gcn2_ppi',
        loop='range(1, 2001)',
        plain=(('hidden_channels=2048', 'hidden_channels=16'),),
        more=(),
    ),
]

_LOADER = (
    'from torch_geometric.loader import NeighborLoader',
    'from pyg_sar import NeighborLoader',
)
_ALL = 'all neighbours; '
_WORKERS = "{'batch_size': 1024, 'num_workers': 6, 'persistent_workers': True}"
_MEAN = "pyg_sar.loader.mean_of_batches(F.cross_entropy(out, y, reduction='none'))"

_PADDING = (
    'its attention counts padding, as long as the largest tree of a batch, '
    'and its batch norms see the rows of a batch; each rank has a batch of its own'
)

LOADERS = [
    Script(
        'examples/hierarchical_sampling.py',
        plain=(('[20, 10, 5]', '[-1, -1, -1]'), ("'batch_size': 1024", "'batch_size': 16")),
        more=(
            _LOADER,
            (", 'num_workers': 6, 'persistent_workers': True", ''),
            ('F.cross_entropy(out, y)', _MEAN),
        ),
        why='the loader of pyg_sar, without workers, and the mean of all ranks',
        note='all neighbours',
    ),
    Script(
        'examples/reddit.py',
        loop='range(1, 11)',
        plain=(
            ('[25, 10]', '[-1, -1]'),
            ("'batch_size': 1024", "'batch_size': 16"),
            ('model.inference(data.x, subgraph_loader)', 'model(data.x, data.edge_index)'),
        ),
        more=(
            _LOADER,
            (", 'num_workers': 6, 'persistent_workers': True", ''),
            (
                'loss = F.cross_entropy(y_hat, y)',
                'loss = pyg_sar.loader.mean_of_batches('
                "F.cross_entropy(y_hat, y, reduction='none'))",
            ),
            (
                'total_loss += float(loss) * batch.batch_size',
                'y_hat, y = map(pyg_sar.loader.gather_batches, (y_hat, y))\n'
                '        total_loss += float(loss) * len(y)',
            ),
            ('total_examples += batch.batch_size', 'total_examples += len(y)'),
        ),
        why='the loader of pyg_sar, without workers; means and counts of all ranks',
        note='all neighbours; evaluates on the whole graph, in one call',
    ),
    *(
        Script(
            'examples/ogbn_train.py',
            f'--model {model} --epochs 2 --local_epochs 1 --num_workers 0 --fan_out -1 '
            '--hidden_channels 16',
            label=f'--model {model}',
            plain=(("data.to(device, 'x', 'y')", "data = data.to(device, 'x', 'y')"),),
            loads=("= data.to(device, 'x', 'y')",),
            more=(
                _LOADER,
                ('loss = F.cross_entropy(out, y)', 'loss = ' + _MEAN),
                (
                    'total_correct += int((pred == y).sum())',
                    'pred, y = map(pyg_sar.loader.gather_batches, (pred, y))\n'
                    '        total_correct += int((pred == y).sum())',
                ),
            ),
            why='the loader of pyg_sar; means and counts of all ranks',
            differs=_PADDING if model in ('sgformer', 'polynormer') else '',
            note='all neighbours',
        )
        for model in ('sage', 'gat', 'sgformer', 'polynormer')
    ),
]

EXPLAINERS = [
    Script(
        'examples/explain/gnn_explainer_link_pred.py',
        loop='range(1, 201)',
        plain=(('epochs=200', 'epochs=5', 2),),
        graphs=3,
    ),
]

SCRIPTS = [
    *FULL_BATCH,
    *LINKS,
    *HETERO,
    *OTHERS,
    *PROTEINS,
    *EXPLAINERS,
    *LOADERS,
    *CITATION,
    *INFERENCE,
]
