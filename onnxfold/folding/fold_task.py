"""The value that the steps of a fold work on: an opened model, a request and a method."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxfold.budget.objectives import find_objective
from onnxfold.budget.width_request import WidthRequest, requested_limits, whole_widths, width_request
from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, NothingToFoldError
from onnxfold.fidelity.held_out import Texts
from onnxfold.fidelity.verify import Verification, VerificationResult
from onnxfold.files import Cache
from onnxfold.folding.after.refine import require_refinable
from onnxfold.folding.fold_model import FoldedModel, WrittenModel, fold_model
from onnxfold.folding.inputs.choose_inputs import ChosenInputs, choose_inputs, generates, require_given
from onnxfold.folding.methods import Method, find_method
from onnxfold.folding.networks.joined_model import JoinedModel, joined_inputs
from onnxfold.folding.one_graph import with_candidates
from onnxfold.folding.open_model import GraphForm, OpenedModel, Opening, integer_reason, open_model
from onnxfold.folding.prepare import PreparedModel, prepare
from onnxfold.graph.files.load import ModelLike
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.tokenizer import rare_words
from onnxfold.progress import Progress
from onnxfold.quantize.quantize import require_quantizable
from onnxfold.report import ModelSize, RefusalKind


@dataclass(frozen=True, eq=False)
class FoldTask:
    """An opened model, and the request for its fold."""

    opened: OpenedModel  # the model; its graphs are edited in place
    config: FoldConfig
    method: Method  # the method, in the form for this model
    progress: Progress
    networks: JoinedModel | None = None  # the networks that the model is made of, where networks are merged
    shared_inputs: ChosenInputs | None = None  # what several folds run the model on, where that is known before

    @property
    def reference(self) -> ModelLike:
        """The model that a result is compared with."""
        return self.opened.source if self.networks is None else self.networks.exact

    def request(self, *, may_keep_all: bool = False) -> WidthRequest:
        """Return the demands of the request on the widths."""
        opened, config, method = self.opened, self.config, self.method
        if method.drops_blocks or config.lossless:
            return whole_widths(opened.graphs, config)
        groups = [graph_groups for _, graph_groups in opened.graphs]
        if method.only_streams and not any(group.norms for group in groups[0]) and not config.ratios:
            refusals = opened.scopes[0].analysis.refusals
            stream = next((refusal for refusal in refusals if refusal.kind is RefusalKind.STREAM), None)
            why = "" if stream is None else f"; {stream.axis} of '{stream.node}' stays, {stream.reason}"
            raise NothingToFoldError(f"nothing to fold: the model has no residual stream that may be rotated{why}")
        whole, note = method.whole(groups)
        repair = method.repair_row
        adds = {"adds_biases": repair.adds_biases, "adds_nodes": repair.adds_nodes}
        try:
            request = width_request(opened.graphs, config, opened.size, whole=whole, **adds)
        except BudgetError as error:
            integers = integer_reason(opened.scopes)
            raise BudgetError(f"{error}; {integers}" if integers else str(error)) from None
        if note:
            request = replace(request, remarks=(*request.remarks, note))
        if request.widths is not None and not may_keep_all:
            request.require_change(request.widths)
        return request

    def prepared(self, inputs: ModelInputs | None, *, chooses: bool = False) -> PreparedModel:
        """Return the model with all that its fold does not decide, to be run on some inputs or not at all.

        `chooses` says whether losses choose the widths: all candidates are computed then, before any graph is folded.
        """
        prepared = prepare(self.opened, self.method, inputs, self.config.seed)
        return with_candidates(prepared, self.progress) if chooses else prepared

    def by_selection(self) -> PreparedModel:
        """Return the model for folds by a selection of channels, which take little time: widths alone matter."""
        return replace(self, method=find_method("prune-l2")).prepared(None)

    def inputs(self, *, needed: bool) -> ChosenInputs:
        """Return the inputs: if the model is made of networks and no samples are given, a part from each of them."""
        if not needed:
            unused = ", ".join(self.config.about_inputs)
            note = f"this request does not run the network, so these options change nothing: {unused}"
            return ChosenInputs(None, (note,) if unused else ())
        if self.shared_inputs is not None:
            return self.shared_inputs
        if self.networks is None or not generates(self.config):
            return choose_inputs(self.opened, self.config, self.method, self.progress)
        return joined_inputs(self.networks, self.config, self.method, self.progress)

    def verify(
        self, written: WrittenModel, renamed: Mapping[str, str], *, measures_latency: bool
    ) -> VerificationResult:
        """Check a result in onnxruntime; without a wish for it nothing is known."""
        config = self.config
        if not config.verify:
            return VerificationResult(None)
        return Verification(
            self.reference, written.view, config.seed, self.progress,
            threads=config.threads if measures_latency else None,
            fitted_on=written.inputs, renamed=renamed,
            texts=Texts(tokenizer=config.tokenizer, cache=Cache(config.cache)),
            is_copy=config.keeps_widths and config.drop_blocks is None and not config.quantizes,
        ).run()  # fmt: skip


def fold_once(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Fold to the widths of a request."""
    prepared = task.prepared(data.inputs, chooses=request.widths is None)
    return fold_model(prepared, request, task.config, task.progress)


def check_request(config: FoldConfig, *, of_networks: bool = False) -> None:
    """Refuse bad names, numbers and files before any work."""
    find_method(config.method, cluster=config.cluster, repair=config.repair, of_networks=of_networks)
    requested_limits(config)
    find_objective(config.objective)
    require_given(config)


def open_task(
    model: ModelLike, config: FoldConfig, progress: Progress, *, networks: JoinedModel | None = None,
    shared_inputs: ChosenInputs | None = None, size: ModelSize | None = None,
) -> FoldTask:  # fmt: skip
    """Open a model, and check the options that depend on it; `size` is what it cost before words went."""
    method = find_method(config.method, cluster=config.cluster, repair=config.repair, of_networks=networks is not None)
    tables = method.partitioner.rotates == "tables" and config.may_add_products
    rare = rare_words(model, config.tokenizer) if tables else ()
    caches, streams = (config.allow_cache_change, config.per_layer_cache), method.partitioner.rotates_streams
    form = GraphForm(*caches, tables=tables, streams=streams, queries=tables, rare=rare)
    needs_groups = not (config.keeps_widths or config.lossless)
    opening = Opening(form, needs_groups, shares=networks is None, sizes=generates(config), runs=config.verify)
    opened = open_model(model, config.input_shapes, progress, opening)
    opened = replace(opened, size=size or opened.size)
    if networks is not None:
        sources = tuple(networks.sources_of(scope) for scope in opened.scopes)
        opened = replace(opened, size=networks.size, sources=sources)
    if config.quantizes:
        require_quantizable(opened.view, opened.stored.nodes if opened.stored else ())
    if config.refines:
        require_refinable(opened.view, config)
    method = method.form(is_language=token_interface(opened.view) is not None)
    return FoldTask(opened, config, method, progress, networks, shared_inputs)
