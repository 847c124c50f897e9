"""What one rank holds of a partitioned graph: format, halo, blocks, edge_index."""
