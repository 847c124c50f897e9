"""SARConv: computes a PyG conv on a cut graph, on the path that its messages need."""
