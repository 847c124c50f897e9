"""PyG's message and aggregation code, run on pieces of the graph."""
