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
    'DirGNNConv: GCN',
    'DirGNNConv: SAGE, alpha=0.2',
    'DirGNNConv: GAT',
    'EGConv: symnorm',
    'EGConv: sum, max, std, symnorm',
    'EGConv: mean, min, var',
    'EGConv: no self loops',
    'FastRGCNConv: mean',
    'FastRGCNConv: sum, bases',
    'FastRGCNConv: blocks',
    'GCNConv: flow=target_to_source',
    'GENConv: softmax',
    'GENConv: softmax, learnable t',
    'GENConv: softmax_sg',
    'GENConv: power, learnable p',
    'GENConv: softmax and max',
    'MeshCNNConv: default',
    'SignedConv: first',
    'SignedConv: second',
    'SuperGATConv: MX, eval',
    'SuperGATConv: MX',
    'SuperGATConv: SD, mean, eval',
    'SAGEConv: aggr=mul',
    'SAGEConv: aggr=softmax',
    'SAGEConv: aggr=powermean',
    'SAGEConv: aggr=median',
    'SAGEConv: aggr=lstm',
    'SAGEConv: aggr=softmax, learnable t',
    'SAGEConv: aggr=softmax, t per channel',
    'SAGEConv: aggr=softmax, semi_grad',
    'SAGEConv: aggr=powermean, learnable p',
    'SAGEConv: aggr=powermean, p per channel',
    'SAGEConv: all that are fused',
    'SAGEConv: softmax and median',
    'SimpleConv: aggr=quantile',
    'SimpleConv: aggr=GRU',
    'SimpleConv: aggr=Set2Set',
    'SimpleConv: aggr=Sort',
    'SimpleConv: aggr=GraphMultisetTransformer',
    'SimpleConv: aggr=Attentional',
    'SimpleConv: aggr=Attentional with net',
    'SimpleConv: aggr=Equilibrium',
    'SimpleConv: aggr=MLP',
    'SimpleConv: aggr=DeepSets',
    'SimpleConv: aggr=SetTransformer',
    'SimpleConv: aggr=LCM',
    'SimpleConv: aggr=VariancePreserving',
    'SimpleConv: aggr=PatchTransformer',
    'GraphConv: aggr=median',
    'GATConv: aggr=median',
    'GINEConv: aggr=softmax',
    'GINEConv: aggr=mul',
    'MessagePassing: own aggregate',
    'MessagePassing: own aggregate by edge type',
    'MessagePassing: own aggregate with a softmax',
    'MessagePassing: flow=target_to_source',
    'MessagePassing: flow=target_to_source, edge features',
    'MessagePassing: reads edge_index in message',
}
"""Cases that are refused at construction today. One that becomes exact has to leave the list."""

_HOOKS = 'hooks inside message passing are refused, and in forward only'
_INDEX = 'a message that looks at other edges is refused, and in forward only'

FAILS_TODAY = {
    'ChebConv: no normalisation': 'the default of lambda_max is a maximum over the edges of a rank',
    'RGATConv: within-relation': _INDEX,
    'RGATConv: mod=scaled': _INDEX,
    'RGATConv: mod=f-scaled': _INDEX,
    'MessagePassing: decomposed_layers=2': 'decomposed_layers is ignored',
    'MessagePassing: keeps a number in message': 'only edge values are kept',
    'MessagePassing: degree of the destination': _INDEX,
    'MessagePassing: message_forward_pre_hook': _HOOKS,
    'MessagePassing: message_forward_hook': _HOOKS,
    'MessagePassing: aggregate_forward_pre_hook': _HOOKS,
    'MessagePassing: aggregate_forward_hook': _HOOKS,
    'MessagePassing: propagate_forward_pre_hook': _HOOKS,
    'MessagePassing: propagate_forward_hook': _HOOKS,
    'MessagePassing: all hooks': _HOOKS,
}
"""Cases that fail in forward or give a wrong result today. One that is exact has to leave."""
