"""Averages gradients of parameters over the ranks at the end of every backward."""
