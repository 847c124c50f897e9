"""The autograd Functions: weighted sums, recomputed messages, chunks of destinations, halo."""
