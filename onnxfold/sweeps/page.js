'use strict';
(() => {
  const { rows, originals, axes, errors, models, methods } = JSON.parse(document.getElementById('data').textContent);
  const byId = (name) => document.getElementById(name);
  const [chart, chosen, x, y, model] = ['chart', 'chosen', 'x', 'y', 'model'].map(byId);
  let pinned = null;

  const svg = (tag, attributes, ...children) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const html = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });

  // Every method has a colour and a shape of its own; a shape fills a square of side 2r around the origin.
  const shapes = [
    (r) => svg('circle', { r }),
    (r) => svg('rect', { x: -0.9 * r, y: -0.9 * r, width: 1.8 * r, height: 1.8 * r }),
    (r) => svg('path', { d: `M0 ${-1.15 * r}L${1.1 * r} ${0.85 * r}H${-1.1 * r}Z` }),
    (r) => svg('path', { d: `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0Z` }),
    (r) => svg('path', { d: `M0 ${1.15 * r}L${1.1 * r} ${-0.85 * r}H${-1.1 * r}Z` }),
  ];
  const mark = (method, r) => {
    const number = methods.indexOf(method);
    const made = shapes[number % shapes.length](r);
    made.setAttribute('class', `mark m${number % 6}`);
    return made;
  };

  const cross = () => svg('path', { d: 'M-6 -6L6 6M-6 6L6 -6', class: 'original' });

  // Every model has a pattern of its own for the line of its front.
  const patterns = ['none', '7 4', '2 3', '9 3 2 3', '1 5'];
  const pattern = (name) => patterns[models.indexOf(name) % patterns.length];

  const short = (value) => {
    const size = Math.abs(value);
    const [unit, by] = [['G', 1e9], ['M', 1e6], ['k', 1e3]].find(([, b]) => size >= b) || ['', 1];
    return `${Number((value / by).toPrecision(3))}${unit ? ' ' + unit : ''}`;
  };
  const shown = (axis, value) => (axis.percent ? `${Number((100 * value).toPrecision(3))} %` : short(value));

  // Round numbers from zero up to at least `most`.
  const ticks = (most, count) => {
    const rough = (most || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    return Array.from({ length: Math.ceil((most || 1) / step - 1e-9) + 1 }, (_, i) => i * step);
  };

  // The points that no other one is better than in one axis without being worse in the other.
  const frontOf = (points) => {
    const found = [];
    for (const point of [...points].sort((a, b) => a.x - b.x || a.y - b.y)) {
      if (!found.length || point.y < found[found.length - 1].y) found.push(point);
    }
    return found;
  };

  const show = (row) => {
    const known = [...axes.filter((a) => !a.key.endsWith('_part')), ...errors]
      .filter((axis) => row.values[axis.key] != null)
      .map((axis) => `${axis.title}: ${shown(axis, row.values[axis.key])}`);
    chosen.replaceChildren(html('strong', row.name), html('p', row.verdict), html('p', known.join(' · ')));
    const code = document.createElement('pre');
    code.append(html('code', row.command));
    chosen.append(code);
    for (const other of chart.querySelectorAll('.chosen-mark')) other.classList.remove('chosen-mark');
    chart.querySelector(`[data-row="${rows.indexOf(row)}"]`)?.classList.add('chosen-mark');
  };

  const draw = () => {
    const across = axes.find((axis) => axis.key === x.value), up = errors.find((axis) => axis.key === y.value);
    const pointsOf = (list) => list
      .filter((row) => model.value === '' || row.model === models[model.value])
      .map((row) => ({ row, x: row.values[across.key], y: row.values[up.key] }))
      .filter((point) => point.x != null && point.y != null);
    const points = pointsOf(rows), before = pointsOf(originals);
    const width = Math.max(chart.clientWidth, 280), height = Math.round(Math.min(Math.max(0.6 * width, 260), 480));
    const left = 58, right = width - 14, top = 12, bottom = height - 44;
    const xs = ticks(Math.max(...[...points, ...before].map((p) => p.x), 0), width < 500 ? 4 : 8);
    const ys = ticks(Math.max(...[...points, ...before].map((p) => p.y), 0), 5);
    const atX = (v) => left + (right - left) * v / xs[xs.length - 1];
    const atY = (v) => bottom - (bottom - top) * v / ys[ys.length - 1];
    const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': `${up.title} by ${across.title}` });
    const text = (content, attributes) => picture.append(svg('text', attributes, content));
    for (const v of ys) {
      picture.append(svg('line', { x1: left, x2: right, y1: atY(v), y2: atY(v), class: v ? 'grid-line' : 'axis' }));
      text(shown(up, v), { x: left - 6, y: atY(v) + 4, 'text-anchor': 'end' });
    }
    xs.forEach((v, i) => {
      picture.append(svg('line', { x1: atX(v), x2: atX(v), y1: bottom, y2: bottom + 4, class: 'axis' }));
      text(shown(across, v), { x: atX(v), y: bottom + 18, 'text-anchor': i === xs.length - 1 ? 'end' : 'middle' });
    });
    text(across.title, { x: (left + right) / 2, y: height - 6, 'text-anchor': 'middle' });
    text(up.title, { x: 14, y: (top + bottom) / 2, 'text-anchor': 'middle', transform: `rotate(-90 14 ${(top + bottom) / 2})` });
    const best = new Set();
    for (const name of new Set(points.map((p) => p.row.model))) {
      const front = frontOf(points.filter((p) => p.row.model === name));
      front.forEach((point) => best.add(point.row));
      const way = front.map((p, i) => (i ? `H${atX(p.x)}V${atY(p.y)}` : `M${atX(p.x)} ${atY(p.y)}`)).join('');
      if (front.length) picture.append(svg('path', { d: way, class: 'front', 'data-model': name, 'stroke-dasharray': pattern(name) }));
    }
    for (const point of before) {
      const made = cross();
      made.setAttribute('transform', `translate(${atX(point.x)} ${atY(point.y)})`);
      made.append(svg('title', {}, `${point.row.model} before: ${shown(up, point.y)} at ${shown(across, point.x)}`));
      picture.append(made);
    }
    for (const point of points.filter((p) => p.row.picked)) {
      picture.append(svg('circle', { cx: atX(point.x), cy: atY(point.y), r: 11, class: 'picked-mark' }));
    }
    for (const point of [...points].sort((a, b) => best.has(a.row) - best.has(b.row) || a.x - b.x)) {
      const made = mark(point.row.method, best.has(point.row) ? 6 : 3.6);
      made.setAttribute('transform', `translate(${atX(point.x)} ${atY(point.y)})`);
      made.setAttribute('data-row', rows.indexOf(point.row));
      made.append(svg('title', {}, `${point.row.name}: ${shown(up, point.y)} at ${shown(across, point.x)}`));
      if (best.has(point.row)) {
        made.setAttribute('tabindex', '0');
        made.setAttribute('data-front', '');
      }
      made.addEventListener('pointerenter', () => pinned || show(point.row));
      made.addEventListener('focus', () => show(point.row));
      made.addEventListener('click', () => { pinned = pinned === point.row ? null : point.row; show(point.row); });
      picture.append(made);
    }
    chart.replaceChildren(picture);
    if (pinned) show(pinned);
    const entry = (sample, text) => {
      const made = html('li', '');
      made.append(svg('svg', { viewBox: '-8 -8 16 16', 'aria-hidden': 'true' }, sample), text);
      return made;
    };
    const used = new Set(points.map((p) => p.row.method)), fronts = new Set(points.map((p) => p.row.model));
    const line = (name) => svg('line', { x1: -8, x2: 8, y1: 0, y2: 0, class: 'front', 'stroke-dasharray': pattern(name) });
    byId('legend').replaceChildren(
      ...methods.filter((method) => used.has(method)).map((method) => entry(mark(method, 6), method)),
      ...(before.length ? [entry(cross(), 'before the fold')] : []),
      ...(points.some((p) => p.row.picked) ? [entry(svg('circle', { r: 6, class: 'picked-mark' }), 'picked')] : []),
      ...(fronts.size > 1 ? [...fronts].map((name) => entry(line(name), `front of ${name}`)) : []),
    );
  };

  // The table of all folds is sorted by a column; what is unknown comes last.
  const body = byId('all-folds').tBodies[0];
  [...byId('all-folds').tHead.rows[0].cells].forEach((head, column) => {
    const button = html('button', head.textContent);
    button.addEventListener('click', () => {
      const up = head.getAttribute('aria-sort') !== 'ascending', sign = up ? 1 : -1;
      for (const other of head.parentElement.cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      const value = (tr) => (column ? Number(tr.cells[column].dataset.value ?? NaN) : tr.cells[0].textContent);
      const order = (a, b) => (column ? isNaN(a) - isNaN(b) || sign * (a - b) || 0 : sign * a.localeCompare(b));
      body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
    });
    head.replaceChildren(button);
  });

  for (const control of [x, y, model]) control.addEventListener('change', () => { pinned = null; draw(); });
  let last = 0;
  new ResizeObserver(() => {
    if (Math.abs(chart.clientWidth - last) > 1) { last = chart.clientWidth; draw(); }
  }).observe(chart);
  draw();
})();
