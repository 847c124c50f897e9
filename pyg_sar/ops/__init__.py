"""The fastest form of a block's sums on this device: tensors only, no ranks, no convs."""
