"""Functions that work number by number, or row by row whatever the dimension of the rows."""

from __future__ import annotations

from typing import Any

import torch

from pyg_sar.rows.align import align, argument, as_rows
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, in_nested, plainly, refuse

_DRAWS = frozenset(
    [
        'rand_like',
        'randn_like',
        'randint_like',
        'bernoulli',
        'normal',
        'uniform',
        'exponential',
        'random',
        'geometric',
        'cauchy',
        'log_normal',
        'poisson',
        'dropout',
        'alpha_dropout',
        'rrelu',
        'binomial',
        'rrelu_with_noise',
    ]
)
"""Functions that draw random numbers."""


@rule(
    # What torch does not tag as pointwise.
    'pointwise broadcast_tensors normal to cpu cuda clone detach contiguous float double half '
    'bfloat16 long int bool short char byte type_as zeros_like ones_like empty_like full_like '
    'rand_like randn_like randint_like bernoulli uniform exponential random zero fill copy poisson '
    'dropout alpha_dropout relu leaky_relu elu gelu silu selu celu relu6 softplus softsign '
    'hardtanh logsigmoid log_sigmoid tanhshrink hardshrink softshrink threshold rrelu mish '
    'hardswish hardsigmoid masked_fill isclose pin_memory positive '
    'truediv floordiv mod and or xor invert lshift rshift neg pos abs eq ne lt le gt ge pow add '
    'sub mul rsub rdiv radd rmul rpow div true_divide nan_to_num resolve_conj resolve_neg '
    'polygamma conj view_as_complex_ conj_physical geometric cauchy log_normal binomial '
    'cfloat cdouble chalf float_power divmod rdivmod complex polar real isreal alias_copy '
    'detach_copy '
    # Other names of those that torch tags.
    'absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh divide fix floor_divide greater '
    'greater_equal less less_equal multiply negative not_equal subtract special_digamma '
    'special_erf special_erfc special_erfinv special_exp2 special_expit special_expm1 '
    'special_gammainc special_gammaincc special_gammaln special_i0 special_log1p special_logit '
    'special_multigammaln special_ndtr special_polygamma special_psi special_round special_sinc '
    'special_xlogy '
)
def pointwise(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs on the own rows."""
    name = name_of(func)
    if is_in_place(name) and not isinstance(args[0], Rows):
        return into_plain(func, args, kwargs)
    if kwargs.get('out') is not None:
        refuse(func, "with 'out' is not known to be right")
    args, kwargs, right, space = align(func, args, kwargs)
    with plainly():
        if bare(name) in _DRAWS and not _is_off(name, args, kwargs):
            with own_draws(_device(args), _generator(args, kwargs)):
                return as_rows(func(*args, **kwargs), right, space)
        return as_rows(func(*args, **kwargs), right, space)


def into_plain(func: Any, args: Any, kwargs: Any) -> Any:
    """Into a plain tensor, in place: all ranks write what the rows of all say."""
    args, kwargs = in_nested((args, kwargs), whole)
    with plainly():
        return func(*args, **kwargs)


def _is_off(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a dropout drops nothing, and so draws nothing."""
    p = argument(args, kwargs, 1, 'p', default=0.5)
    return 'dropout' in name and (not argument(args, kwargs, 2, 'training', default=True) or p == 0)


def is_in_place(name: str) -> bool:
    """Whether a function writes to its first argument."""
    if name.startswith('__'):
        return name.startswith('__i') and name != '__invert__'
    return name.endswith('_')


def _generator(args: Any, kwargs: Any) -> torch.Generator | None:
    given = (*args, *kwargs.values())
    return next((each for each in given if isinstance(each, torch.Generator)), None)


def _device(args: Any) -> Any:
    return next(each.device for each in args if isinstance(each, Rows))
