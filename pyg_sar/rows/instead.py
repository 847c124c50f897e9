"""What to write in place of a function that would need the rows of all ranks."""

from __future__ import annotations

ALL_ROWS = (
    'pyg_sar.gather(x) has all rows in the order of the whole graph, pyg_sar.local(x) is the plain '
    'tensor of the own rows'
)

EVERY_PAIR = (
    'write q @ pyg_sar.gather(k).t(), all pairs of the own rows; F.scaled_dot_product_attention('
    'q, k, v) of torch.nn.functional, or linear attention q @ (k.t() @ v)'
)

_INSTEAD = {
    'write pyg_sar.gather(x).numpy(force=True), all rows on every rank, for NumPy, SciPy and '
    'scikit-learn': 'numpy array array_wrap',
    'write pyg_sar.gather(x).tolist()': 'tolist',
    'write x[3, 0].item() for one number, or x.sum().item() for one of all rows': (
        'item float int index complex'
    ),
    'write (x > 0).all() or (x > 0).any(), which are one bool of all rows': 'bool',
    'write (x == value).any()': 'contains',
    'write x[3] for one row, or for row in pyg_sar.gather(x)': 'unbind iter',
    "write torch_geometric.utils.scatter(x, index, dim=0, reduce='sum'), or 'mean', 'min', 'max', "
    'with the group of every row as index': (
        'scatter_sum scatter_mean segment_sum_csr segment_mean_csr segment_min_csr segment_max_csr '
        'segment_sum_coo segment_mean_coo segment_min_coo segment_max_coo segment_reduce'
    ),
    "write torch_geometric.utils.scatter(x, index, dim=0, reduce='max')": 'scatter_max scatter_min',
    "write torch_geometric.utils.scatter(*map(pyg_sar.gather, (x, index)), reduce='mul')": (
        'scatter_mul'
    ),
    'write table[index] with the group of every row as index': 'gather_csr gather_coo',
    'write torch.diag(pyg_sar.gather(x)); (x * y).sum(1) is the diagonal of x @ y.t()': (
        'diag diagonal'
    ),
    'write torch.multinomial(pyg_sar.gather(weights), n)': 'multinomial',
    'write x.unsqueeze(1) and batch_first=True, a sequence for every row': (
        'lstm gru rnn_tanh rnn_relu'
    ),
    'write torch.cdist(x, pyg_sar.gather(x)), the pairs of the own rows': 'cdist pdist',
    'call the model itself, without torch.jit.script or torch.jit.trace': 'torchscript',
}

BY_NAME = {name: text for text, names in _INSTEAD.items() for name in names.split()}
"""By the name of a function, without underscores around it."""
