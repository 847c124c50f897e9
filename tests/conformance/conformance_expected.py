"""What is not exact, and is known not to be. Whatever is not listed here has to be exact."""

from __future__ import annotations

REFUSED_BY_DESIGN = {
    'CuGraphGATConv',
    'CuGraphRGCNConv',
    'CuGraphSAGEConv',
    'DynamicEdgeConv',
    'FusedGATConv',
    'GPSConv',
    'GravNetConv',
    'PANConv',
    'WLConv',
    'XConv',
}
"""Classes that are refused at construction, for good: graphs made in forward, closed CUDA kernels,
products of adjacency matrices, colours by a dictionary, attention over all nodes."""

NOT_YET_GRAPHS = {'bipartite', 'hetero', 'hypergraph'}
"""Graphs of several types of nodes."""

NOT_YET = {
    'DirGNNConv: GAT',
    'DirGNNConv: GCN',
    'DirGNNConv: SAGE, alpha=0.2',
    'GCNConv: flow=target_to_source',
    'MeshCNNConv: default',
    'MessagePassing: flow=target_to_source',
    'MessagePassing: flow=target_to_source, edge features',
    'MessagePassing: reads edge_index in message',
    'SuperGATConv: MX',
    'SuperGATConv: MX, eval',
    'SuperGATConv: SD, mean, eval',
}
"""Cases that are refused at construction today. One that becomes exact has to leave the list."""

_HOOK = 'a hook before aggregate is refused, and in forward only'
_OTHERS = 'the result of a node depends on the degrees of others; refused in forward only'

FAILS_TODAY = {
    'ChebConv: no normalisation': 'the default of lambda_max is a maximum over the edges of a rank',
    'EGConv: mean, min, var': 'its self loops are added to halo nodes too',
    'MessagePassing: aggregate_forward_pre_hook': _HOOK,
    'MessagePassing: all hooks': _HOOK,
    'MessagePassing: keeps a number in message': 'only edge values are kept',
    'SAGEConv: aggr=lstm': _OTHERS,
    'SimpleConv: aggr=Equilibrium': _OTHERS,
    'SimpleConv: aggr=GRU': _OTHERS,
    'SimpleConv: aggr=LCM': _OTHERS,
    'SimpleConv: aggr=PatchTransformer': 'wrong: it depends on the largest degree of all nodes',
}
"""Cases that fail in forward or give a wrong result today. One that is exact has to leave."""

FAILS_WITHOUT_NODES = {
    'a softmax on a rank without in-edges has no maximum': (
        'TransformerConv: 2 heads',
        'AGNNConv: learnable beta',
        'AGNNConv: fixed beta, no self loops',
        'GATv2Conv: 3 heads',
        'GATv2Conv: edge features',
        'GATv2Conv: shared weights, residual',
        'GATv2Conv: concat=False, no loops',
        'GATv2Conv: attention weights',
        'GeneralConv: additive attention',
        'GeneralConv: dot product',
        'HEATConv: concat',
        'HEATConv: mean',
        'PointTransformerConv: default',
        'PointTransformerConv: own nets',
        'RGATConv: additive',
        'RGATConv: multiplicative, edges',
        'RGATConv: bases',
        'RGATConv: blocks',
        'RGATConv: mod=additive',
        'RGATConv: mod=f-additive',
        'RGATConv: attention weights',
        'TransformerConv: edge features',
        'TransformerConv: beta',
        'TransformerConv: concat=False',
        'TransformerConv: attention weights',
        'TransformerConv: aggr=max',
        'MessagePassing: two softmaxes, one of the other',
        'MessagePassing: three softmaxes side by side',
        'MessagePassing: edge_updater with a softmax',
        'MessagePassing: edge_updater, no gradients',
        'MessagePassing: keeps edge values in message',
        'MessagePassing: own aggregate with a softmax',
        'GENConv: softmax',
        'GENConv: softmax, learnable t',
        'GENConv: softmax_sg',
        'GENConv: softmax and max',
        'GINEConv: aggr=softmax',
        'SAGEConv: aggr=softmax',
        'SAGEConv: aggr=softmax, learnable t',
        'SAGEConv: aggr=softmax, t per channel',
        'SAGEConv: aggr=softmax, semi_grad',
        'SimpleConv: aggr=Attentional',
        'SimpleConv: aggr=Attentional with net',
    ),
    'a maximum over the edges of a rank without any': (
        'ChebConv: K=1',
        'ChebConv: K=3, sym, weights',
        'ChebConv: rw',
    ),
    'its message cannot run on no edges': (
        'FeaStConv: 2 heads',
        'FeaStConv: no self loops',
    ),
    'two tensors without rows are taken for one': (
        'FiLMConv: one relation',
        'FiLMConv: 3 relations',
        'FiLMConv: own net',
    ),
}
"""Cases that fail today where one rank has no nodes, by reason. The first of each is run."""
