// Memory of one rank over time, by category, under the line of what the device has; beside it the peaks of all shown ranks.

const TALL = 190, FOOT = 20;

class MemoryPane {
  constructor(sides, axis, colours) {
    Object.assign(this, { sides, axis, colours });
    const known = sides.filter((side) => side.layout.classes.some((c) => c.peak_bytes > 0));
    this.section = pane("memory", "Memory", "Exact bytes alive, by category. The list holds the peaks; choose a rank to see it over time.");
    if (!known.length) {
      this.section.append(h("p", { class: "note" }, "This timeline holds no memory: it was measured without it."));
      return;
    }
    this.rows = known.flatMap((side) => side.ranks.map((rank) => ({ side, rank, about: side.layout.classes.find((c) => c.rank === rank.rank) })));
    this.top = Math.max(...this.rows.map((r) => Math.max(r.about.peak_bytes, r.side.capacity !== null && r.about.peak_bytes > 0.2 * r.side.capacity ? r.side.capacity : 0)));
    this.chosen = this.rows.reduce((a, b) => (b.about.peak_bytes > a.about.peak_bytes ? b : a));
    this.surface = canvas(TALL, { "aria-hidden": "true" });
    this.box = h("div", { class: "view", tabindex: 0, role: "application", "aria-label": "Memory over time", "aria-describedby": "keys" }, this.surface);
    this.title = h("h3", { "aria-live": "polite" });
    const used = this.sides[0].data.categories.filter((_, i) => this.rows.some((r) => r.about.by_category[i] > 0));
    this.section.append(legend(used.map((c) => [colours.ofCategory(c), c])), this.title, this.box, this.peaks());
    axis.attach(this.box);
    axis.listeners.push(() => this.draw());
    this.box.addEventListener("pointermove", (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => { this.at = null; tip.hide(); axis.changed(); });
    document.addEventListener("rank", (e) => this.choose(this.rows.find((r) => r.side === e.detail.side && r.rank === e.detail.rank)));
  }

  choose(row) {
    if (!row) return;
    this.chosen = row;
    for (const b of this.list.children) b.setAttribute("aria-pressed", String(b.row === row));
    this.axis.changed();
  }

  // A bar per rank: its peak by category, and the mark of what the device has.
  peaks() {
    const { colours } = this, { categories } = this.sides[0].data, share = (x) => `${(100 * x) / (1.06 * this.top)}%`;
    this.list = h("div", { class: "peaks", role: "group", "aria-label": "Peak memory of every rank" }, this.rows.map((row) => {
      const { side, rank, about } = row, many = this.sides.length > 1;
      const parts = about.by_category.map((x, i) => x > 0 && h("i", { css: { width: share(x), background: colours.ofCategory(categories[i]) } })).filter(Boolean);
      const mark = side.capacity !== null && side.capacity <= 1.06 * this.top ? h("s", { css: { left: share(side.capacity) } }) : null;
      const full = side.capacity !== null && about.peak_bytes > side.capacity;
      const made = h("button", { type: "button", "aria-pressed": "false", on: { click: () => this.choose(row) } },
        h("span", { class: "who" }, `rank ${rank.rank}`, h("small", {}, ` ${[many ? side.label : "", stagesOf(rank)].filter(Boolean).join(", ")}`)), h("span", { class: "bar" }, parts, mark),
        h("span", { class: full ? "number warn" : "number" }, bytes(about.peak_bytes) + (full ? ", does not fit" : "")));
      made.row = row;
      made.setAttribute("aria-pressed", String(row === this.chosen));
      return made;
    }));
    return this.list;
  }

  draw() {
    const { axis, colours } = this, { side, rank, about } = this.chosen, width = this.box.clientWidth, context = this.surface.fit(width, TALL);
    const [low, high] = rank.memories, top = 1.08 * this.top, y = (x) => TALL - FOOT - (x / top) * (TALL - FOOT - 6), end = axis.x(side.makespan, width);
    const which = this.sides.length > 1 ? `${side.label}, ` : "";
    this.title.textContent = `${which}${side.rankName(rank)}${rank.stages.length ? `, ${stagesOf(rank)}` : ""}: peak ${bytes(about.peak_bytes)}${side.capacity === null ? "" : ` of ${bytes(side.capacity)}`}`;
    ruler(context, axis, colours, width, 0, TALL - FOOT, TALL - FOOT / 2);
    context.textAlign = "right";
    for (const x of ticks(0, top, 4).values) {
      context.fillStyle = colours.line;
      context.fillRect(GUTTER, Math.round(y(x)), width - GUTTER, 1);
      context.fillStyle = colours.muted;
      if (y(x) > 6) context.fillText(x === 0 ? "0" : bytes(x), GUTTER - 8, y(x));
    }
    clipped(context, width, TALL, () => {
      const first = Math.max(low, above(side.times, axis.from, low, high) - 1);
      this.area(context, side, first, high, width, end, y);
      if (this.at !== null && this.at !== undefined) {
        context.fillStyle = colours.ink;
        context.fillRect(axis.x(this.at, width), 0, 1, TALL - FOOT);
      }
      this.capacity(context, side, width, y, top);
    });
  }

  // Categories on top of each other; of the steps that share a pixel the highest is drawn.
  area(context, side, first, high, width, end, y) {
    const { axis, colours } = this, held = side.held, xs = [], rows = [];
    for (let i = first; i < high && side.times[i] <= axis.to; i++) {
      const x = Math.max(axis.x(side.times[i], width), GUTTER), row = held.map((column) => column[i]), total = row.reduce((a, b) => a + b, 0);
      if (xs.length && x - xs[xs.length - 1] < 0.75) {
        if (total > rows[rows.length - 1].total) rows[rows.length - 1] = { row, total };
        rows[rows.length - 1].after = row;
      } else { xs.push(x); rows.push({ row, total, after: row }); }
    }
    xs.push(Math.min(end, width));
    const base = xs.map(() => 0);
    held.forEach((_, c) => {
      const tops = rows.map(({ row }, k) => base[k] + row[c] * side.bytes_tick);
      if (!tops.some((t, k) => t > base[k])) return;
      context.fillStyle = colours.ofCategory(side.data.categories[c]);
      context.beginPath();
      for (let k = 0; k < tops.length; k++) { context.lineTo(xs[k], y(tops[k])); context.lineTo(xs[k + 1], y(tops[k])); }
      for (let k = tops.length - 1; k >= 0; k--) { context.lineTo(xs[k + 1], y(base[k])); context.lineTo(xs[k], y(base[k])); }
      context.fill();
      tops.forEach((t, k) => { base[k] = t; });
    });
  }

  capacity(context, side, width, y, top) {
    if (side.capacity === null) return;
    context.fillStyle = this.colours.warn;
    context.textAlign = "right";
    context.font = "10.5px system-ui, sans-serif";
    const text = `device memory ${bytes(side.capacity)}`;
    if (side.capacity > top) return context.fillText(`${text}, above the scale`, width - 6, 9);
    for (let x = GUTTER; x < width; x += 9) context.fillRect(x, Math.round(y(side.capacity)), 6, 1.5);
    return context.fillText(text, width - 6, y(side.capacity) + (y(side.capacity) > 14 ? -8 : 9));
  }

  point(e) {
    const { side, rank } = this.chosen, width = this.box.clientWidth, [low, high] = rank.memories;
    const t = this.axis.time(e.offsetX, width), i = above(side.times, t, low, high) - 1;
    this.at = e.offsetX < GUTTER || t > side.makespan ? null : t;
    this.axis.changed();
    if (this.at === null || i < low) return tip.hide();
    const parts = side.data.categories.map((name, c) => [name, side.held[c][i] * side.bytes_tick]).filter(([, x]) => x > 0);
    return tip.show([h("b", {}, bytes(parts.reduce((a, [, x]) => a + x, 0))), h("span", { class: "kind" }, ` at ${instant(Number(t.toPrecision(6)))}`), pairs(parts.map(([name, x]) => [name, bytes(x)]))], e.clientX, e.clientY);
  }
}
