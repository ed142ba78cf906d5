// The op that is pointed at, and the one that is kept: its words, its dependencies as arrows, the way to its neighbours.

const LISTED = 4; // links and dependencies that a small window has room for

class Selection {
  constructor(view) {
    this.view = view;
    this.panel = h("div", { id: "selection", "aria-live": "polite", class: "selection" }, h("p", { class: "hint" }, "Click a bar, or press Enter, to keep its numbers here."));
  }

  hover(found) {
    if ((found && this.pointed && found.i === this.pointed.i && found.lane === this.pointed.lane) || (!found && !this.pointed)) return;
    this.pointed = found;
    this.view.axis.changed();
  }

  pin(found) {
    this.pinned = found;
    this.panel.replaceChildren(...this.words(found, true));
    this.view.axis.changed();
  }

  // Shift and arrows go along a lane and between lanes; Enter keeps what is nearest to the middle; Escape lets go.
  key(e) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (e.key === "Enter" && e.target === this.view.box) { e.preventDefault(); this.pinMiddle(); }
    else if (e.key === "Escape") { this.pinned = null; this.panel.replaceChildren(); tip.hide(); this.view.axis.changed(); }
    else if (step && e.shiftKey) { e.preventDefault(); this.pinned ? this.go(...step) : this.pinMiddle(); }
  }

  pinMiddle() {
    const { view } = this, { axis, box } = view, t = (axis.from + axis.to) / 2;
    const block = view.blocks.find((b) => b.y >= box.scrollTop + RULER - 10) || view.blocks[0];
    this.pin(this.nearest(block, block.lanes[0], t));
  }

  nearest(block, lane, t) {
    const { end } = lane.kind === "runs" ? block.side.run : block.side.op;
    return { block, lane, i: Math.min(above(end, t, lane.low, lane.high), lane.high - 1) };
  }

  go(along, across) {
    let { block, lane, i } = this.pinned;
    const all = this.view.blocks.flatMap((b) => b.lanes.filter((l) => l.high > l.low).map((l) => [b, l]));
    const times = (b, l) => (l.kind === "runs" ? b.side.run : b.side.op);
    const middle = (times(block, lane).start[i] + times(block, lane).end[i]) / 2;
    if (across) {
      const at = all.findIndex(([b, l]) => b === block && l.kind === lane.kind && l.name === lane.name);
      [block, lane] = all[Math.min(Math.max(at + across, 0), all.length - 1)];
      ({ i } = this.nearest(block, lane, middle));
    } else i = Math.min(Math.max(i + along, lane.low), lane.high - 1);
    this.pin({ block, lane, i });
    this.view.reveal(block, lane, times(block, lane).start[i], times(block, lane).end[i]);
  }

  // An op by its number, wherever it stands.
  find(side, op) {
    const rank = side.rankOf(op), block = this.view.blocks.find((b) => b.side === side && b.rank === rank), at = side.laneOf(op);
    if (this.view.compact && at > 0) this.view.setCompact(false);
    return { block: this.view.blocks.find((b) => b.side === side && b.rank === rank) || block, lane: undefined, i: op, at };
  }

  jump(side, op) {
    const { block, at } = this.find(side, op);
    if (this.view.compact) this.view.setCompact(false);
    const home = this.view.blocks.find((b) => b.side === side && b.rank === block.rank), lane = home.lanes[at + 1];
    this.pin({ block: home, lane, i: op });
    this.view.reveal(home, lane, side.op.start[op], side.op.end[op]);
    this.view.box.focus();
  }

  words(found, full = false) {
    return found.lane.kind === "runs" ? this.ofRun(found) : this.ofOp(found, full);
  }

  ofRun({ block, i, lane }) {
    const { side, rank } = block, from = side.run.start[i], to = side.run.end[i];
    const low = above(side.op.end, from, ...lane.ops);
    let n = 0, moved = 0;
    for (let k = low; k < lane.ops[1] && side.op.start[k] < to; k++, n++) if (side.key(k).kind !== COMPUTE) moved += side.op.end[k] - side.op.start[k];
    const first = side.column.run_first[i], { stage } = side.key(first);
    return [h("b", {}, side.opShort(first)), h("span", { class: "kind" }, ` ${side.rankName(rank)}${stage >= 0 ? `, stage ${stage}` : ""}`), pairs([
      ["lasts", seconds(to - from)], ["from", instant(from)], ["to", instant(to)], ["ops", count(n)], moved > 0 && ["in transfers", `${seconds(moved)}, ${percent(moved / (to - from))}`],
    ])];
  }

  ofOp({ block, i }, full) {
    const { side, rank } = block, key = side.key(i), from = side.op.start[i], to = side.op.end[i], sent = side.bytes(i), waited = side.waited(i);
    const most = full ? 40 : LISTED, links = side.linksOf(i);
    const rows = [
      ["lasts", seconds(to - from)], ["from", instant(from)], ["to", instant(to)],
      key.kind !== COMPUTE && ["waits for partners", seconds(waited)],
      sent > 0 && ["sends", `${bytes(sent)}${to > from ? `, ${bandwidth(sent / (to - from))}` : ""}`],
      ...links.slice(0, most).map(([name, kind, , many, on], k) => [k ? "" : "links", [named(name), ` ${kind}${many > 1 ? ` × ${count(many)}` : ""}: ${bytes(on)}`]]),
      ...this.others("waits for", side, side.waits.from(i), most, full), ...this.others("needed by", side, side.waits.to(i), most, full),
      ...this.others("partner", side, [...side.partners.from(i), ...side.partners.to(i)], most, full),
    ];
    const where = ` ${side.rankName(rank)}${key.stage >= 0 ? `, stage ${key.stage}` : ""}`;
    return [h("b", {}, named(side.opName(i))), h("span", { class: "kind" }, where), key.detail && h("p", { class: "detail" }, named(key.detail)), pairs(rows)].filter(Boolean);
  }

  others(title, side, ops, most, full) {
    const name = (op) => `${side.opName(op)}, rank ${side.rankOf(op).rank}`;
    const shown = ops.slice(0, most).map((op, k) => [k ? "" : title, full ? h("button", { type: "button", class: "link", on: { click: () => this.jump(side, op) } }, name(op)) : name(op)]);
    return ops.length > most ? [...shown, ["", `and ${ops.length - most} more`]] : shown;
  }

  // Outlines, and arrows to what an op waits for and what waits for it.
  draw(context, width) {
    for (const [found, line] of [[this.pinned, 2], [this.pointed, 1.25]]) {
      if (!found) continue;
      const lane = this.place(found), times = found.lane.kind === "runs" ? found.block.side.run : found.block.side.op;
      if (!lane) continue;
      const x = this.view.axis.x(times.start[found.i], width), to = this.view.axis.x(times.end[found.i], width);
      context.strokeStyle = this.view.colours.ink;
      context.lineWidth = line;
      context.strokeRect(x - 0.5, lane.y - 0.5, Math.max(to - x, 1) + 1, lane.height + 1);
      if (found.lane.kind === "ops") this.arrows(context, width, found);
    }
  }

  // The lane of a found op in the present arrangement.
  place({ block, lane }) {
    const now = this.view.blocks.find((b) => b.side === block.side && b.rank === block.rank);
    return now && now.lanes.find((l) => l.kind === lane.kind && l.name === lane.name);
  }

  arrows(context, width, { block, i }) {
    const { side } = block;
    const end = (op) => [this.view.axis.x(side.op.end[op], width), this.middle(side, op)], start = (op) => [this.view.axis.x(side.op.start[op], width), this.middle(side, op)];
    for (const op of side.waits.from(i).slice(0, 64)) this.arrow(context, end(op), start(i));
    for (const op of side.waits.to(i).slice(0, 64)) this.arrow(context, end(i), start(op));
    for (const op of side.partners.from(i)) this.arrow(context, start(i), end(op));
    for (const op of side.partners.to(i)) this.arrow(context, start(op), end(i));
  }

  middle(side, op) {
    const rank = side.rankOf(op), block = this.view.blocks.find((b) => b.side === side && b.rank === rank), lane = block.lanes[side.laneOf(op) + 1];
    return lane ? lane.y + lane.height / 2 : block.y + block.height / 2;
  }

  arrow(context, [x0, y0], [x1, y1]) {
    const bend = Math.max(12, Math.min(60, Math.abs(x1 - x0) / 2));
    context.strokeStyle = this.view.colours.ink;
    context.fillStyle = this.view.colours.ink;
    context.lineWidth = 1.1;
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 4, y1);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x1 - 6, y1 - 3);
    context.lineTo(x1 - 6, y1 + 3);
    context.fill();
  }
}
