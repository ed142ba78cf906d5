// Where every rank sits: all ranks in their servers, coloured by a coordinate or by what they live through.

const LARGEST = 26; // pixels of a square, and of the gap at its side
const between = (size) => Math.max(2, Math.min(6, size / 2));

class LayoutPane {
  constructor(sides, axis, colours) {
    this.section = pane("layout", "Layout", "Every square is a rank, every group of squares a server. Ranks that share a group with the one pointed at are outlined.");
    for (const side of sides) {
      if (sides.length > 1) this.section.append(h("h3", {}, side.label));
      new RankMap(this.section, side, colours);
      if (side.layout.network) this.section.append(network(side, colours));
    }
  }
}

class RankMap {
  constructor(section, side, colours) {
    Object.assign(this, { side, colours, at: null });
    const { layout, column } = side, stage = (rank) => layout.classes[column.class[rank]].stages[0] ?? -1;
    const about = (rank) => layout.classes[column.class[rank]], share = (name) => (rank) => about(rank)[name] / Math.max(1e-30, side.communication.step_s);
    this.choices = {
      ...(Object.values(layout.classes).some((c) => c.stages.length) ? { stage: [stage, (x) => `stage ${x}`] } : {}),
      ...Object.fromEntries(layout.axes.filter((a) => a !== "pp").map((a) => [a, [(rank) => column[`at_${a}`][rank], (x) => `${a} ${x}`]])),
      class: [(rank) => column.class[rank], (x) => `like rank ${layout.classes[x].rank}`],
      ...(layout.classes.some((c) => c.peak_bytes > 0) ? { "peak memory": [(rank) => about(rank).peak_bytes, bytes] } : {}),
      compute: [share("compute_s"), percent], exposed: [share("exposed_s"), percent], idle: [share("idle_s"), percent],
    };
    this.by = Object.keys(this.choices)[0];
    const select = h("select", { on: { change: () => { this.by = select.value; this.draw(); } } }, Object.keys(this.choices).map((c) => h("option", { value: c }, c)));
    const outlined = layout.axes.length ? legend(layout.axes.map((a) => [colours.ofAxis(a), `outlined: same ${a} group`])) : null;
    this.scale = h("span", { class: "scale" });
    this.says = h("p", { class: "says", "aria-live": "polite" }, "");
    this.surface = canvas(0, { "aria-hidden": "true" });
    this.box = h("div", { class: "view map", tabindex: 0, role: "application", "aria-label": "Map of all ranks; arrow keys go from rank to rank" }, this.surface);
    section.append(h("div", { class: "line" }, h("label", {}, "Colour by ", select), this.scale, outlined), this.box, this.says);
    this.box.addEventListener("pointermove", (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => { this.show(null); tip.hide(); });
    this.box.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  // Squares as large as fit: [size, servers per line, of each server its ranks].
  lay(width) {
    const { side } = this, servers = new Map();
    for (let rank = 0; rank < side.world; rank++) {
      const server = side.layout.servers.length ? side.column.server[rank] : Math.floor(rank / 8);
      servers.get(server)?.push(rank) ?? servers.set(server, [rank]);
    }
    this.groups = [...servers.values()];
    const most = Math.max(...this.groups.map((g) => g.length)), across = Math.min(most, 8), lines = Math.ceil(most / across);
    for (let size = LARGEST; ; size = size > 8 ? size - 2 : size - 1) {
      const wide = across * size + between(size), tall = lines * size + between(size), columns = Math.max(1, Math.floor((width - 4) / wide));
      const height = Math.ceil(this.groups.length / columns) * tall + 4;
      if (height <= 380 || size <= 3) return { size, wide, tall, columns, across, height };
    }
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width) return;
    const found = this.lay(width), { size, wide, tall, columns, across, height } = found, context = this.surface.fit(width, height);
    const [value, text] = this.choices[this.by], values = Array.from({ length: this.side.world }, (_, rank) => value(rank));
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b)), gap = size > 6 ? 1.5 : size > 3 ? 0.8 : 0.4;
    this.where = new Float32Array(2 * this.side.world);
    this.size = size;
    const coloured = (x) => this.colours.scale(high > low ? (x - low) / (high - low) : 0.5);
    context.font = `${Math.min(10, size * 0.42)}px system-ui, sans-serif`;
    context.textAlign = "center";
    this.groups.forEach((ranks, g) => ranks.forEach((rank, k) => {
      const x = 2 + (g % columns) * wide + (k % across) * size, y = 2 + Math.floor(g / columns) * tall + Math.floor(k / across) * size, colour = coloured(values[rank]);
      this.where.set([x, y], 2 * rank);
      context.fillStyle = colour;
      context.fillRect(x, y, size - gap, size - gap);
      if (size < 18) return;
      context.fillStyle = brightness(colour) < 140 ? "#FFFFFF" : "#1A1A1A";
      context.fillText(rank, x + (size - gap) / 2, y + size / 2);
    }));
    this.scale.replaceChildren(text(low), h("i", { css: { background: `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map((x) => this.colours.scale(x)).join(",")})` } }), text(high));
    this.outline(context);
  }

  // The groups of the rank that is pointed at: those that differ from it along one axis only.
  outline(context) {
    if (this.at === null) return;
    const { column, layout, world } = this.side, { at, where, size } = this;
    for (const axis of layout.axes) {
      context.strokeStyle = this.colours.ofAxis(axis);
      context.lineWidth = size > 8 ? 2 : 1.2;
      for (let rank = 0; rank < world; rank++) {
        if (rank === at || layout.axes.some((a) => a !== axis && a !== "ep" && column[`at_${a}`][rank] !== column[`at_${a}`][at])) continue;
        if (axis === "ep" || column[`at_${axis}`][rank] === column[`at_${axis}`][at]) continue;
        context.strokeRect(where[2 * rank] - 0.5, where[2 * rank + 1] - 0.5, size - 0.5, size - 0.5);
      }
    }
    context.strokeStyle = this.colours.ink;
    context.lineWidth = 2.5;
    context.strokeRect(where[2 * at] - 1, where[2 * at + 1] - 1, size + 0.5, size + 0.5);
  }

  show(rank) {
    if (rank === this.at) return;
    this.at = rank;
    this.draw();
    this.says.textContent = rank === null ? "" : this.facts(rank).map(([name, value]) => `${name} ${value}`).join(", ");
  }

  facts(rank) {
    const { layout, column, communication } = this.side, about = layout.classes[column.class[rank]];
    return [
      ["rank", String(rank)], ...(layout.servers.length ? [["on", layout.servers[column.server[rank]]]] : []), ...layout.axes.map((a) => [a, String(column[`at_${a}`][rank])]),
      ...(about.stages.length ? [["stage", about.stages.join(" and ")]] : []), ["simulated as", `rank ${about.rank}`], ...(about.peak_bytes > 0 ? [["peak memory", bytes(about.peak_bytes)]] : []),
      ["compute", percent(about.compute_s / communication.step_s)], ["exposed", percent(about.exposed_s / communication.step_s)], ["idle", percent(about.idle_s / communication.step_s)],
    ];
  }

  point(e) {
    let found = null;
    for (let rank = 0; rank < this.side.world && this.where; rank++) {
      const x = this.where[2 * rank], y = this.where[2 * rank + 1];
      if (e.offsetX >= x && e.offsetX < x + this.size && e.offsetY >= y && e.offsetY < y + this.size) { found = rank; break; }
    }
    this.show(found);
    if (found === null) return tip.hide();
    const [[, rank], ...facts] = this.facts(found);
    return tip.show([h("b", {}, `rank ${rank}`), pairs(facts.map(([name, value]) => [name, named(value)]))], e.clientX, e.clientY);
  }

  key(e) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 8, ArrowUp: -8 };
    if (e.key === "Escape") return this.show(null);
    if (!(e.key in steps)) return undefined;
    e.preventDefault();
    return this.show(this.at === null ? 0 : Math.min(Math.max(this.at + steps[e.key], 0), this.side.world - 1));
  }
}
