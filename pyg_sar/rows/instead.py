"""What to write in place of a function that would need the rows of all ranks."""

from __future__ import annotations

ALL_ROWS = (
    'pyg_sar.gather(x) has all rows in the order of the whole graph, pyg_sar.local(x) is the plain '
    'tensor of the own rows'
)

BROADCAST = (
    'in two dimensions would pair every row with every row',
    'write x.view(-1) for the column of an [N, 1], or give pyg_sar.gather(y) as one side for all '
    'pairs',
)
"""Why rows do not broadcast against rows, and what to write."""

_INSTEAD = {
    'write pyg_sar.gather(x).numpy(force=True), all rows on every rank, or give pyg_sar.gather(x) '
    'to what makes arrays (NumPy, SciPy, scikit-learn, some functions of PyG); in place of '
    'structured_negative_sampling pyg_sar.negative_sampling(edge_index, paired=True)': (
        'numpy array array_wrap'
    ),
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
    "write top = torch_geometric.utils.scatter(x, index, dim=0, reduce='max'); a logsumexp is "
    'top + scatter((x - top[index]).exp(), index, dim=0).log()': 'scatter_max scatter_min',
    'write pyg_sar.gather(x).sort(dim=0); a median in a conv is aggr=MedianAggregation() of its '
    'constructor': 'sort argsort msort',
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
    'write q @ pyg_sar.gather(k).t(), all pairs of the own rows, linear attention q @ (k.t() @ v), '
    'or torch.nn.functional.scaled_dot_product_attention(q, k, v)': (
        'matmul rmatmul mm bmm linalg_matmul addmm addbmm baddbmm einsum inner tensordot bilinear'
    ),
    'write x[:, None] * pyg_sar.gather(y), all pairs of the own rows': 'outer ger',
    'write torch.cdist(x, pyg_sar.gather(y)), all pairs of the own rows': 'cdist pdist',
    'add the node to the graph before the cut, as by torch_geometric.transforms.VirtualNode; pad '
    'other dimensions by F.pad': 'pad constant_pad_nd',
    'write torch.nn.Linear for a kernel of 1, or give it pyg_sar.gather(x)': (
        'conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d'
    ),
    'write loss.backward() or torch.autograd.grad(loss, x), of a loss that is one number': (
        'grad vjp jvp linearize torch.func.vmap torch.func.grad torch.func.grad_and_value '
        'torch.func.jacrev torch.func.jacfwd torch.func.hessian torch.func.functionalize'
    ),
    'call the model itself, without torch.jit.script or torch.jit.trace': 'TorchScript',
}

BY_NAME = {name: text for text, names in _INSTEAD.items() for name in names.split()}
"""By the name of a function, without underscores around it."""
