"""Closeness of a merged model to every network that it was merged from."""

from onnxfold.fidelity.held_out import held_out_inputs, measure_fidelity
from onnxfold.folding.joined_model import JoinedModel, Share, Together
from onnxfold.graph.session import Session
from onnxfold.graph.view import GraphView
from onnxfold.report import MergeRecord, NetworkShare


def merge_record(joined: JoinedModel, view: GraphView, seed: int, *, measures: bool) -> MergeRecord:
    """Compare a merged model with each of its networks, on generated inputs that the fold has not seen.

    Parameters
    ----------
    joined : JoinedModel
        The networks.
    view : GraphView
        The merged model.
    seed : int
        The user's seed.
    measures : bool
        Whether anything is run.
    """
    shares = []
    for i, network in enumerate(joined.networks):
        fidelity = None
        if measures and not (i and set(joined.graph.heads) == {"first"}):
            infos = Session(joined.exact).inputs
            inputs = held_out_inputs(joined.graph.view, seed=seed, infos=infos)
            fidelity = measure_fidelity(Together(joined, i), Share(joined, view, i), inputs, called="held-out")
        shares.append(NetworkShare(network.name.strip("'"), fidelity))
    return MergeRecord(joined.graph.heads, tuple(shares))
