"""Ranks as processes, joined by ``torch.distributed``."""
