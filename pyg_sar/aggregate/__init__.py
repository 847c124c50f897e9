"""The autograd Functions: linear sums, replayed messages, all halo rows at once."""
