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


def frequencies(ids: Array, rows: int, tokenizer: Tokenizer | None) -> Matrix:
    """Return the probability of every token, shape (rows,).

    Parameters
    ----------
    ids : ndarray of int
        The tokens of the inputs.
    rows : int
        Number of ids that the model knows.
    tokenizer : Tokenizer, optional
        The tokenizer; without it all tokens that were not seen are as common as each other.

    Examples
    --------
    >>> frequencies(np.array([[1, 1, 0]]), 4, None).tolist()
    [0.3, 0.5, 0.1, 0.1]
    """
    counts = np.bincount(ids.reshape(-1), minlength=rows)[:rows].astype(np.float64)
    seen, different = counts.sum(), float((counts > 0).sum())
    prior = np.full(rows, 1.0 / rows) if tokenizer is None else tokenizer.prior(rows)
    found: Matrix = (counts + different * prior) / (seen + different)
    return found
