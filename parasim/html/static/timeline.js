// The timeline: streams of every shown rank on the common time axis.

class TimelinePane {
  constructor(sides, axis, colours) {
    Object.assign(this, { sides, axis, colours, compact: false });
    const mode = h("button", { type: "button", "aria-pressed": "false", on: { click: () => this.setCompact(!this.compact) } }, "Compute only");
    const move = (label, text, f) => h("button", { type: "button", "aria-label": label, title: label, on: { click: f } }, text);
    const tools = [mode, move("Zoom in (+)", "+", () => axis.zoom(2)), move("Zoom out (-)", "−", () => axis.zoom(0.5)), move("Show all (0)", "Reset", () => axis.reset())];
    this.mode = mode;
    const about = "Drag or arrow keys pan, Ctrl + wheel or + and − zoom, 0 resets; Shift + arrows go from op to op, Enter keeps one in view.";
    this.section = pane("timeline", "Timeline", about, tools);
    this.surface = canvas(0, { "aria-hidden": "true" });
    this.spacer = h("div", { class: "spacer" }, this.surface);
    this.box = h("div", { class: "view", tabindex: 0, role: "application", "aria-label": "Timeline of all streams", "aria-describedby": "keys", "aria-controls": "selection" }, this.spacer);
    this.section.append(this.legend(), this.box, h("p", { id: "keys", class: "hidden" }, about));
    this.selection = new Selection(this);
    this.section.append(this.selection.panel);
    axis.attach(this.box);
    axis.listeners.push(() => this.draw());
    this.box.addEventListener("scroll", () => axis.changed());
    this.box.addEventListener("pointermove", (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => this.leave());
    this.box.addEventListener("click", (e) => this.click(e));
    this.box.addEventListener("keydown", (e) => this.selection.key(e));
    this.lay();
  }

  legend() {
    const used = new Set(this.sides.flatMap((side) => [...side.keyColour])), { phases, list, data } = this.colours;
    const entries = [...used].sort((a, b) => a - b).map((i) => {
      const axis = this.colours.axes[i - phases.length];
      return [list[i], axis ? `${axis} transfer` : data.phase_names[phases[i]] || "other"];
    });
    return legend([...entries, [this.colours.idle, "idle"], [this.colours.pale[0], "pale: blocked by a transfer of that colour"]]);
  }

  setCompact(compact) {
    this.compact = compact;
    this.mode.setAttribute("aria-pressed", String(compact));
    this.lay();
    this.axis.changed();
  }

  lay() {
    Object.assign(this, blocks(this.sides, this.compact));
    this.spacer.style.height = `${this.height}px`;
    this.box.style.height = `${Math.min(this.height + 2, Math.max(220, Math.round(window.innerHeight * 0.66)))}px`;
  }

  draw() {
    const width = this.box.clientWidth, tall = this.box.clientHeight, top = this.box.scrollTop, { axis, colours } = this;
    const context = this.surface.fit(width, tall);
    const visible = this.blocks.filter((b) => b.y + b.height > top + RULER - 2 && b.y < top + tall);
    const began = performance.now();
    this.labels = [];
    context.save();
    context.beginPath();
    context.rect(0, RULER, width, tall);
    context.clip();
    context.translate(0, -top);
    this.windowOfStep(context, width, top, tall);
    for (const block of visible) this.gutter(context, block, width);
    clipped(context, width, this.height + tall, () => {
      const painter = new Painter([...colours.list, ...colours.pale, colours.idle]);
      for (const block of visible) this.gaps(painter, block, width);
      painter.flush(context);
      for (const block of visible) this.lanes(painter, block, width);
      painter.flush(context);
      this.write(context);
      this.selection.draw(context, width);
    });
    context.restore();
    ruler(context, axis, colours, width, 0, RULER, RULER / 2);
    context.fillStyle = colours.line;
    context.fillRect(0, RULER - 1, width, 1);
    this.drawn = performance.now() - began;
    Object.assign(this.box.dataset, { from: axis.from, to: axis.to, gutter: GUTTER, frame: this.drawn.toFixed(1) });
  }

  // Where a timeline holds several steps: a line at the beginning of the one that the report is about.
  windowOfStep(context, width, top, tall) {
    for (const side of this.sides) {
      const x = this.axis.x(side.window[0], width);
      if (side.window[0] <= 0 || x < GUTTER) continue;
      context.fillStyle = this.colours.muted;
      context.fillRect(Math.round(x), top, 1, tall);
    }
  }

  gutter(context, block, width) {
    const { side, rank, y, lanes, height } = block, { colours } = this;
    if (this.sides.length > 1 && side.index === 1) {
      context.fillStyle = colours.band;
      context.fillRect(0, y - 2, width, height + 4);
    }
    context.fillStyle = colours.line;
    if (block.ends && !this.compact) context.fillRect(0, Math.round(y + height + APART / 2) + 0.0, width, 1);
    context.textAlign = "left";
    context.font = "600 11.5px system-ui, sans-serif";
    context.fillStyle = colours.ink;
    const name = `rank ${rank.rank}`;
    context.fillText(name, 8, y + CALLS / 2);
    const after = 8 + context.measureText(name).width + 6;
    context.font = "10.5px system-ui, sans-serif";
    context.fillStyle = colours.muted;
    if (rank.count > 1) context.fillText(`× ${count(rank.count)}`, after, y + CALLS / 2);
    context.textAlign = "right";
    context.fillText(this.sides.length > 1 ? side.label : stagesOf(rank), GUTTER - 8, y + CALLS / 2);
    if (this.compact) return;
    context.font = "9px system-ui, sans-serif";
    for (const lane of lanes.slice(1)) context.fillText(lane.name, GUTTER - 8, lane.y + lane.height / 2);
    if (this.sides.length > 1) {
      context.textAlign = "left";
      context.fillText(stagesOf(rank), 8, y + CALLS + OPS / 2 + 1);
    }
  }

  gaps(painter, block, width) {
    const { side, rank, lanes } = block, { gap, column } = side, idle = painter.colours.length - 1, pale = this.colours.list.length;
    const colour = (i) => (column.gap_cause[i] < this.colours.axes.length ? pale + column.gap_cause[i] : idle);
    bars(painter, this.axis, width, lanes[0], gap, rank.gaps[0], rank.gaps[1], colour);
  }

  lanes(painter, block, width) {
    const { side, lanes } = block, { axis } = this, colour = (i) => side.colour(i);
    const [calls, ...others] = lanes;
    const first = side.column.run_first;
    bars(painter, axis, width, calls, side.run, calls.low, calls.high, (i) => colour(first[i]), (i, x, w) => {
      if (w > 14) this.labels.push([side.opShort(first[i]), x, calls.y + (this.compact ? 7 : CALLS / 2), w, colour(first[i]), 10.5]);
    });
    if (this.compact) return;
    for (const lane of others) {
      bars(painter, axis, width, lane, side.op, lane.low, lane.high, colour, (i, x, w) => {
        if (w > 30 && lane.height >= OPS) this.labels.push([side.key(i).detail.split(", ")[0] || side.opName(i), x, lane.y + lane.height / 2, w, colour(i), 9]);
      });
    }
  }

  write(context) {
    context.textAlign = "left";
    for (const [text, x, y, w, colour, size] of this.labels) {
      context.font = `${size}px system-ui, sans-serif`;
      context.fillStyle = this.colours.inks[colour];
      words(context, text, Math.max(x, GUTTER), y + 0.5, x + w - Math.max(x, GUTTER));
    }
  }

  // What is under the pointer: {block, lane, i} with i an op, or a run in the lane of runs.
  hit(e) {
    const box = this.box.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top + this.box.scrollTop;
    const { block, lane } = laneAt(this.blocks, y), width = this.box.clientWidth;
    if (!lane || x < GUTTER || x > width || e.clientY - box.top < RULER) return { block };
    const times = lane.kind === "runs" ? block.side.run : block.side.op, t = this.axis.time(x, width), near = (2 * this.axis.span) / (width - GUTTER);
    let i = above(times.end, t - near, lane.low, lane.high), best = -1, least = near;
    for (; i < lane.high && times.start[i] <= t + near; i++) {
      const off = Math.max(times.start[i] - t, t - times.end[i], 0);
      if (off < least || (off === 0 && best < 0)) [best, least] = [i, off];
      if (off === 0 && times.end[i] > times.start[i]) { best = i; break; }
    }
    return { block, lane, i: best, t };
  }

  point(e) {
    const found = this.box.classList.contains("dragged") ? {} : this.hit(e);
    this.selection.hover(found.i >= 0 ? found : null);
    if (found.i >= 0) tip.show(this.selection.words(found), e.clientX, e.clientY);
    else if (found.lane && found.lane.kind === "runs") this.gapTip(found, e);
    else if (found.block && e.offsetX < GUTTER) tip.show([h("b", {}, found.block.side.rankName(found.block.rank)), pairs([["ranks", found.block.rank.members], ["stage", found.block.rank.stages.join(", ") || "none"]])], e.clientX, e.clientY);
    else tip.hide();
  }

  gapTip({ block, t }, e) {
    const { side, rank } = block, [low, high] = rank.gaps, i = above(side.gap.end, t, low, high);
    if (i >= high || side.gap.start[i] > t) return tip.hide();
    const cause = side.data.names[side.column.gap_cause[i]];
    const why = cause ? `blocked by a ${cause} transfer in flight` : "idle: nothing that it waits for is in flight";
    return tip.show([h("b", {}, why), pairs([["lasts", seconds(side.gap.end[i] - side.gap.start[i])], ["from", instant(side.gap.start[i])]])], e.clientX, e.clientY);
  }

  leave() {
    this.selection.hover(null);
    tip.hide();
  }

  click(e) {
    if (this.box.classList.contains("dragged")) return;
    const found = this.hit(e);
    if (found.i >= 0) this.selection.pin(found);
    else if (found.block && e.offsetX < GUTTER) document.dispatchEvent(new CustomEvent("rank", { detail: found.block }));
  }

  // Scrolls and pans so that an op is in sight.
  reveal(block, lane, from, to) {
    const { box, axis } = this;
    if (lane.y < box.scrollTop + RULER || lane.y + lane.height > box.scrollTop + box.clientHeight) box.scrollTop = Math.max(0, block.y - RULER - 12);
    if (to <= axis.from || from >= axis.to) axis.set((from + to - axis.span) / 2, (from + to + axis.span) / 2);
    axis.changed();
  }
}

const stagesOf = (rank) => (rank.stages.length ? `stage${rank.stages.length > 1 ? "s" : ""} ${rank.stages.join(", ")}` : "");
