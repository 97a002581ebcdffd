"""Frequencies of tokens, counted in the inputs, and the prior of a tokenizer for those that they did not show.

Of N tokens T different ones were seen, so a new one is expected once in about N / T tokens more. The counts then have
the weight N / (N + T), and the prior has the rest.

References
----------
Witten and Bell, "The zero-frequency problem", IEEE Transactions on Information Theory 37, 1991.
"""

import numpy as np

from onnxfold.graph.tensors import Array, Matrix
from onnxfold.inputs.tokens.tokenizer import Tokenizer


def frequencies(ids: Array, rows: int, tokenizer: Tokenizer | None, *, are_drawn: bool = False) -> Matrix:
    """Return the probability of every token, shape (rows,).

    Examples
    --------
    >>> frequencies(np.array([[1, 1, 0]]), 4, None).tolist()
    [0.3, 0.5, 0.1, 0.1]
    """
    counts = np.bincount(ids.reshape(-1), minlength=rows)[:rows].astype(np.float64)
    prior = np.full(rows, 1.0 / rows) if tokenizer is None else tokenizer.prior(rows)
    special = prior == 0.0
    prior[special] = prior[~special].min()  # rare, but there
    prior /= prior.sum()
    if are_drawn:
        counts[~special] = prior[~special] * (counts[~special].sum() / prior[~special].sum())
        different = float(special.sum()) * prior[special].sum()
    else:
        different = float((counts > 0).sum())
    probabilities: Matrix = (counts + different * prior) / (counts.sum() + different)
    return probabilities
