"""Search for widths with which a model fits a microcontroller: limits of counts are corrected by what exports take.

Widths are chosen by what is counted on the graph. What a runtime takes follows from the widths, too, but not by a
formula: it plans its arena for other operators, and holds tables, inputs and outputs besides. So the limits are those
of the board times what the input counts over what it takes, and are corrected by folds by a selection of channels,
which take little time. The fold by the requested method comes last, and is checked by the same sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from onnxfold.budget.costs.memory import FlashCost, RamCost
from onnxfold.budget.devices import DeviceProfile, MemoryNeed, misfit
from onnxfold.budget.objectives import tightest
from onnxfold.budget.width_request import WidthRequest, requested_limits
from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, NothingToFoldError
from onnxfold.folding.fold_model import Decision, FoldedModel, fold_model
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.progress import silent

#: Folds that are tried, and by how much more than needed a limit that was too wide is narrowed.
_TRIES, _NARROWER = 12, 0.99
#: What is left free, up to which no fold at wider limits is tried.
_SLACK = 0.06
#: Flash that is left for names that are longer in another export of the same model.
_SPARE_BYTES = 1024
#: Constants that are so many times too large for a board are not exported to know it.
_HOPELESS = 8
#: A limit that limits nothing.
_NO_LIMIT = 1 << 60

#: Takes a model, returns what it needs on any board in the type that is asked for.
NeedOf = Callable[[GraphView], MemoryNeed]


class DeviceFit:
    """The fit of a model into a microcontroller."""

    def __init__(self, task: FoldTask, board: DeviceProfile, need_of: NeedOf, *, may_keep: bool) -> None:
        spare = min(_SPARE_BYTES, board.model_flash_bytes // 64)
        board = replace(board, runtime_flash_bytes=board.runtime_flash_bytes + spare)
        self._board, self._need_of, self._may_keep = board, need_of, may_keep
        self._quick = task.by_selection()
        graphs = task.opened.graphs
        costs = RamCost(graphs), FlashCost(graphs)
        free = replace(task, config=_limited_config(replace(task.config, max_params=None), (_NO_LIMIT, _NO_LIMIT)))
        request = free.request(may_keep_all=True)
        narrowest = request.space.narrowest
        self._least = [cost(narrowest) for cost in costs]
        if self._least[1] > _HOPELESS * board.model_flash_bytes:
            raise BudgetError(
                f"{board.name} cannot hold the model: even at its narrowest widths it has {self._least[1]:,} bytes of "
                f"constants, for {board.model_flash_bytes:,} of flash; give a device with more"
            )
        self._need = need = need_of(task.opened.view)
        if misfit(need, board):
            reason = misfit(self._need_at(task, replace(request, widths=narrowest)), board)
            if reason:
                smaller = "" if task.config.quantizes else ", --dtype int8"
                raise BudgetError(
                    f"{board.name} cannot hold the model: even at its narrowest widths it {reason}; give smaller "
                    f"inputs (--input-shapes){smaller} or another device"
                )
        whole = [cost([group.size for group in request.space.groups]) for cost in costs]
        self._limits = self._scale_limits(whole, _shares(need, board))

    def request(self, task: FoldTask) -> WidthRequest:
        """Return the demands of the limits on the widths."""
        at = replace(task, config=_limited_config(task.config, self._limits))
        request = replace(at.request(may_keep_all=True), may_keep=self._may_keep)
        whole = [request.space.fixed.get(i, group.size) for i, group in enumerate(request.space.groups)]
        if request.widths is not None or not request.budgets.exceeded_budgets(whole):
            try:
                request.require_change(request.widths or whole)
            except NothingToFoldError as error:
                raise NothingToFoldError(f"{error}; {_describe_need(self._need, self._board)}") from None
        return request

    def fold(self, task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
        """Fold so that the model fits."""
        prepared = task.prepared(data.inputs, chooses=request.widths is None)
        fitting, reason = self._widest(task, prepared.losses)
        if fitting is None:
            raise BudgetError(f"no fold for {self._board.name} was found: the closest {reason}")
        folded = fold_model(prepared, fitting, task.config, task.progress)
        need = self._need_of(folded.view)
        reason = misfit(need, self._board)
        if reason:
            raise BudgetError(f"the folded model for {self._board.name} {reason}")
        return replace(folded, decision=Decision((_describe_need(need, self._board),)))

    def _widest(self, task: FoldTask, losses: Sequence[Matrix]) -> tuple[WidthRequest | None, str]:
        """Return the request with the widest widths that were tried and fit; without one, why the last do not."""
        best: WidthRequest | None = None
        reason = ""
        for tried in range(_TRIES):
            task.progress(f"fit {self._board.name}", tried, _TRIES)
            try:
                request = self.request(task).add_lossless(self._quick.lossless)
                widths = request.choose(losses)
            except NothingToFoldError:
                if best is None:
                    raise
                break
            if best is not None and widths == best.widths:
                break
            need = self._need_at(task, replace(request, widths=widths))
            reason = misfit(need, self._board)
            shares = _shares(need, self._board)
            if not reason:
                best = replace(request, widths=widths)
                if min(shares) <= 1.0 + _SLACK:
                    break
                self._limits = self._scale_limits(self._limits, shares)
            elif best is not None:
                break
            else:
                self._limits = self._scale_limits(self._limits, [_NARROWER * s if s < 1.0 else 1.0 for s in shares])
        return best, reason

    def _scale_limits(self, limits: Sequence[int], shares: Sequence[float]) -> tuple[int, int]:
        """Return limits times some shares, none below the need of the narrowest widths."""
        ram, flash = (
            max(int(limit * share), least) for limit, share, least in zip(limits, shares, self._least, strict=True)
        )
        return ram, flash

    def _need_at(self, task: FoldTask, request: WidthRequest) -> MemoryNeed:
        """Return the need of a model at the widths of a request."""
        return self._need_of(fold_model(self._quick.trial(), request, task.config, silent).view)


def _limited_config(config: FoldConfig, limits: tuple[int, int]) -> FoldConfig:
    """Return a request with limits of RAM and flash instead of the device's."""
    own = requested_limits(replace(config, device=None))
    both = tightest(own, {"ram": limits[0], "flash": limits[1]})
    return replace(config, device=None, max_ram=both["ram"], max_flash=both["flash"])


def _shares(need: MemoryNeed, board: DeviceProfile) -> tuple[float, float]:
    """Return the memory of a board over the need of a model: RAM for activations, and flash."""
    room = max(need.room_for_activations(board), 0)
    return room / max(need.activation_bytes or 0, 1), board.model_flash_bytes / max(need.model_bytes, 1)


def _describe_need(need: MemoryNeed, board: DeviceProfile) -> str:
    kilobytes = [round(size / 1024) for size in (need.ram_bytes or 0, need.model_bytes)]
    if not need.is_exact:
        return f"not known to fit {board.name}; {kilobytes[0]:,} K RAM, {kilobytes[1]:,} K flash {need.basis}"
    ram, flash = board.model_ram_bytes // 1024, board.model_flash_bytes // 1024
    return (
        f"fits {board.name}: {kilobytes[0]:,} of the {ram:,} K RAM and {kilobytes[1]:,} of the {flash:,} K flash that "
        f"system, runtime and stack leave ({need.basis})"
    )
