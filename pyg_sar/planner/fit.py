"""The least number of ranks that a memory suffices for."""

from __future__ import annotations

from collections.abc import Callable

from pyg_sar.planner.prediction import Prediction


def least_ranks(
    predict: Callable[[int], Prediction], fits: Callable[[Prediction], bool], most: int
) -> Prediction | None:
    """Doubles the number of ranks until they fit, then halves the gap.

    Args:
        predict: Predicts for a number of ranks.
        fits: Whether a prediction is good enough; more ranks are taken to be no worse.
        most: The largest number that is tried.

    Returns:
        The prediction for the least number of ranks, or None if `most` do not fit either.
    """
    low, count = 0, 1
    while not fits(found := predict(count)):
        if count == most:
            return None
        low, count = count, min(2 * count, most)
    while found.num_ranks - low > 1:
        middle = predict((found.num_ranks + low) // 2)
        if fits(middle):
            found = middle
        else:
            low = middle.num_ranks
    return found
