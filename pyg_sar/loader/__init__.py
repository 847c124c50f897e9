"""Mini-batches of the graph of all ranks, exactly as one process would draw them."""
