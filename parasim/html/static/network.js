// The drawing of the network: servers in a row, what is inside them below, switches above; devices carry their ranks.

const UNIT = 46; // pixels of the width of a device
const HIGH = 0.5;
const NODES = { gpu: "#009E73", chip: "#009E73", cpu: "#E69F00", nic: "#56B4E9", pcie: "#E69F00", switch: "#8E8E8E" };

function network(side, colours) {
  const made = side.layout.network, { boxes, wires, frames, notes } = made;
  const edges = [...boxes.map(([x, y, w]) => [x - w / 2, x + w / 2, y, y]), ...frames.map((f) => f.slice(0, 4))];
  const low = (i) => Math.min(...edges.map((e) => e[i])), high = (i) => Math.max(...edges.map((e) => e[i]));
  const left = low(0) - 0.3, right = high(1) + 0.3, bottom = low(2) - 0.9, top = high(3) + 0.5;
  const unit = Math.max(24, Math.min(UNIT, 1180 / (right - left)));
  const X = (x) => (x - left) * unit, Y = (y) => (top - y) * unit;
  const drawing = s("svg", { width: X(right), height: Y(bottom), viewBox: `0 0 ${X(right)} ${Y(bottom)}`, role: "img", "aria-label": `Network of ${made.name}: ${boxes.length} boxes, ${wires.length} bundles of links` });
  for (const [x0, x1, y0, y1, text] of frames) {
    drawing.append(s("rect", { x: X(x0), y: Y(y1), width: (x1 - x0) * unit, height: (y1 - y0) * unit, class: "frame" }));
    drawing.append(s("text", { x: X((x0 + x1) / 2), y: Y(y0) + 13, class: "caption" }, isolated(text)));
  }
  for (const wire of wires) drawing.append(...wireOf(wire, boxes, X, Y, unit, colours));
  for (const [x, y, w, text, kind, , rank] of boxes) {
    const shown = rank >= 0 ? `rank ${rank}` : text, size = Math.min(11, (w * unit - 4) / (0.56 * Math.max(shown.length, 1)));
    const box = s("g", { class: `node ${kind}` }, s("title", {}, `${text}${rank >= 0 ? `, rank ${rank}` : ""}`));
    box.append(s("rect", { x: X(x - w / 2), y: Y(y + HIGH / 2), width: w * unit, height: HIGH * unit, rx: 2, fill: NODES[kind] || NODES.switch }));
    if (size > 4.5) box.append(s("text", { x: X(x), y: Y(y) + size * 0.36, "font-size": size }, isolated(shown)));
    drawing.append(box);
  }
  const rates = new Map();
  for (const [, , kind, rate] of wires) rates.set(kind, [...(rates.get(kind) || []), rate]);
  const about = [...rates].map(([kind, all]) => [colours.ofLink(kind), `${kind}: ${[...new Set([bandwidth(Math.min(...all.map((x) => x ?? Infinity)) === Infinity ? null : Math.min(...all.map((x) => x ?? Infinity))), bandwidth(all.includes(null) ? null : Math.max(...all))])].join(" to ")} per direction`]);
  return h("figure", {}, h("figcaption", {}, "Network: ", named(made.name), notes.length ? `; ${notes.join("; ")}` : ""), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Drawing of the network" }, drawing), legend(about));
}

// A line between rows, from the middle of the narrower box straight to the wider one; an arc within a row.
function wireOf([a, b, kind, rate, many, depth], boxes, X, Y, unit, colours) {
  const [narrow, wide] = [boxes[a], boxes[b]].sort((p, q) => p[2] - q[2]);
  const width = rate === null ? 3 : Math.min(5, 0.6 + 0.9 * Math.max(0, Math.log10(rate) - 9));
  const style = { fill: "none", stroke: colours.ofLink(kind), "stroke-width": width, "stroke-opacity": 0.85 };
  let path, middle;
  if (narrow[1] !== wide[1]) {
    const reach = Math.max(0, wide[2] / 2 - 0.15), met = Math.min(Math.max(narrow[0], wide[0] - reach), wide[0] + reach), side = narrow[1] < wide[1] ? HIGH / 2 : -HIGH / 2;
    path = `M${X(narrow[0])} ${Y(narrow[1] + side)}L${X(met)} ${Y(wide[1] - side)}`;
    middle = [(X(narrow[0]) + X(met)) / 2, (Y(narrow[1] + side) + Y(wide[1] - side)) / 2];
  } else {
    const [x0, x1] = [narrow[0], wide[0]].sort((p, q) => p - q), y = narrow[1];
    path = depth ? `M${X(x0)} ${Y(y - HIGH / 2)}C${X(x0)} ${Y(y - HIGH / 2 - 1.33 * depth)} ${X(x1)} ${Y(y - HIGH / 2 - 1.33 * depth)} ${X(x1)} ${Y(y - HIGH / 2)}` : `M${X(x0)} ${Y(y)}L${X(x1)} ${Y(y)}`;
    middle = [(X(x0) + X(x1)) / 2, Y(y - HIGH / 2 - depth)];
  }
  const line = s("path", { d: path, ...style }, s("title", {}, `${kind}, ${bandwidth(rate)}${many > 1 ? `, ${many} of them` : ""}`));
  return many > 1 ? [line, s("text", { x: middle[0], y: middle[1] + 3, class: "many" }, `${many} ×`)] : [line];
}
