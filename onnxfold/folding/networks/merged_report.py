"""Closeness of a merged model to every network that it was merged from."""

from onnxfold.config import FoldConfig
from onnxfold.fidelity.held_out import held_out_inputs, measure_fidelity
from onnxfold.fidelity.judged import verdict_on
from onnxfold.folding.fold_result import FoldResult
from onnxfold.folding.networks.joined_model import JoinedModel, Share, Together
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.session import Feeds, InputInfo, Session
from onnxfold.graph.view import GraphView
from onnxfold.inputs.noise import noise_inputs
from onnxfold.latency.interleaved import latency_of_two
from onnxfold.report import FidelityReport, LatencyRecord, MergeRecord, NetworkShare


def merge_record(joined: JoinedModel, result: FoldResult, config: FoldConfig) -> MergeRecord:
    """Compare a merged model with each of its networks, on generated inputs that the fold has not seen.

    Its latency is compared with that of the first network, too: a merge takes the place of one network or of all.
    """
    fidelities: list[FidelityReport | None] = [None] * joined.count
    if config.verify:
        inputs = held_out_inputs(joined.graph.view, seed=config.seed, infos=Session(joined.exact).inputs)
        merged = Session(result.view)  # of all networks, opened once
        for i in range(1 if set(joined.graph.heads) == {"first"} else joined.count):
            fidelities[i] = measure_fidelity(Together(joined, i), Share(joined, merged, i), inputs, called="held-out")
    names = [network.name.strip("'") for network in joined.networks]
    verdicts = [None if fidelity is None else verdict_on(fidelity) for fidelity in fidelities]
    shares = list(map(NetworkShare, names, fidelities, verdicts))
    latency = _compare_latency(joined, result.view, config) if result.report.latency is not None else None
    return MergeRecord(joined.graph.heads, tuple(shares), latency)


def _compare_latency(joined: JoinedModel, view: GraphView, config: FoldConfig) -> LatencyRecord | None:
    def feeds(infos: list[InputInfo]) -> Feeds:
        return noise_inputs(infos, samples=1, seed=config.seed, view=view)

    first = joined.sources[0]
    return latency_of_two((first, load(first)), (to_model(view), view), feeds, threads=config.threads)
