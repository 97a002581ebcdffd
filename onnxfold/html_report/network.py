"""The picture of the network: a bar per layer, as high as it is wide, and lines along which activations flow."""

from collections.abc import Mapping, Sequence

from onnxfold.html_report.charts import line, picture, svg_text
from onnxfold.html_report.elements import Element, element
from onnxfold.report import NetworkNode

# In pixels: a column of a layer, one of a join, the highest bar, and where bars stand.
_LAYER, _JOIN, _TALLEST, _BASE = 46.0, 26.0, 96.0, 122.0
_BAR = 26.0
#: The lowest line of texts below the bars, and the line along which activations flow; arcs lie under that.
_TEXTS = _BASE + 44.0
_FLOW = _TEXTS + 13.0
_ARC, _DEEPEST, _EDGE = 9.0, 70.0, 6.0


def network_picture(network: Sequence[NetworkNode], numbers: Mapping[str, int]) -> Element:
    """Return the picture, in its own size, in a frame that scrolls sideways where the page is narrower."""
    places, right = _places(network)
    widest = max(node.width for node in network)
    spans = [places[i] - places[j] for i, node in enumerate(network) for j in node.reads if i - j > 1]
    deepest = min(_DEEPEST, _ARC + max(spans, default=0.0) / 8)
    height = _FLOW + 2 * _EDGE + (deepest if spans else 0.0)
    parts: list[Element] = []
    for i, node in enumerate(network):
        parts += [_edge(places[j], places[i], i - j == 1, deepest, max(spans, default=1.0)) for j in node.reads]
    for place, node in zip(places, network, strict=True):
        if node.is_layer:
            parts += _layer(place, node, widest, numbers)
        else:
            title = element("title", f"{node.name} ({node.op_type})")
            parts.append(element("g", title, element("circle", cx=place, cy=_FLOW, r=5, class_="join")))
    layers = [node for node in network if node.is_layer]
    folded = sum(node.folded_width < node.width for node in layers)
    drawn = picture(
        f"The network: {len(layers)} layers, {folded} of them narrower than before",
        *parts, viewBox=f"0 0 {right:g} {height:g}", width=right, height=height, class_="network",
    )  # fmt: skip
    return element(
        "div", drawn, class_="scroll", tabindex="0", role="region", aria_label="The network, from left to right"
    )


def _places(network: Sequence[NetworkNode]) -> tuple[list[float], float]:
    """Return the middle of every node's column, and where the last one ends."""
    places, x = [], _EDGE
    for node in network:
        column = _LAYER if node.is_layer else _JOIN
        places.append(x + column / 2)
        x += column
    return places, x + _EDGE


def _layer(x: float, node: NetworkNode, widest: int, numbers: Mapping[str, int]) -> list[Element]:
    before, after = (max(_TALLEST * width / widest, 1.0) for width in (node.width, node.folded_width))
    number = numbers.get(node.group)
    change = f" \u2192 {node.folded_width}" if node.folded_width < node.width else ""
    group = f", fold group {number}" if number is not None else ", keeps its width"
    bars = [
        element("rect", x=x - _BAR / 2, y=_BASE - before, width=_BAR, height=before, class_="before"),
        element("rect", x=x - _BAR / 2 + 5, y=_BASE - after, width=_BAR - 10, height=after, class_="after"),
    ]
    return [
        element("g", element("title", f"{node.name} ({node.op_type}): {node.width}{change} channels{group}"), *bars),
        element("circle", cx=x, cy=_FLOW, r=3, class_="station"),
        svg_text(x, _BASE - before - 5, f"{node.width}", "middle"),
        svg_text(x, _BASE + 15, f"{node.folded_width}", "middle", "strong"),
        svg_text(x, _BASE + 30, "" if number is None else f"g{number}", "middle"),
        svg_text(x, _TEXTS - 1, node.op_type[:6], "middle", "tiny"),
    ]


def _edge(start: float, end: float, beside: bool, deepest: float, longest: float) -> Element:
    """Return a line to the next node, or an arc below those in between."""
    if beside:
        return line(start, _FLOW, end, _FLOW, "flow")
    # A cubic curve reaches three quarters of the way to its control points.
    control = _FLOW + (_ARC + (deepest - _ARC) * (end - start) / max(longest, 1.0)) / 0.75
    path = f"M{start:g},{_FLOW:g} C{start:g},{control:g} {end:g},{control:g} {end:g},{_FLOW:g}"
    return element("path", d=path, class_="flow")
