// Use of the busiest links of every kind over time.

const BAND = 26;

class LinksPane {
  constructor(sides, axis, colours) {
    Object.assign(this, { sides, axis, colours });
    const known = sides.filter((side) => side.links.curves.length);
    this.section = pane("links", "Links", "How much of their bandwidth the busiest links carry; a link that stands for several alike has their number.");
    if (!known.length) {
      this.section.append(h("p", { class: "note" }, "This timeline holds no flows on links: nothing was sent, or it was measured."));
      return;
    }
    this.curves = known.flatMap((side) => side.links.curves.map((curve, i) => ({ side, curve, i })));
    this.tall = this.curves.length * (BAND + 8) + FOOT;
    this.surface = canvas(this.tall, { "aria-hidden": "true" });
    this.box = h("div", { class: "view", tabindex: 0, role: "application", "aria-label": "Use of links over time", "aria-describedby": "keys" }, this.surface);
    this.section.append(this.box);
    const head = ["kind", "mean use", "peak use", "busiest", "its mean use"];
    for (const side of known) {
      const rows = side.links.kinds.map((k) => [h("span", {}, h("i", { class: "dot", css: { background: colours.ofLink(k.kind) } }), k.kind), percent(k.mean), percent(k.peak), named(k.busiest), percent(k.busiest_mean)]);
      this.section.append(sides.length > 1 ? h("h3", {}, side.label) : "", table(head, rows, `Use of links by kind${sides.length > 1 ? `, ${side.label}` : ""}`));
    }
    axis.attach(this.box);
    axis.listeners.push(() => this.draw());
    this.box.addEventListener("pointermove", (e) => this.point(e));
    this.box.addEventListener("pointerleave", () => tip.hide());
  }

  draw() {
    const { axis, colours } = this, width = this.box.clientWidth, context = this.surface.fit(width, this.tall);
    ruler(context, axis, colours, width, 0, this.tall - FOOT, this.tall - FOOT / 2);
    this.curves.forEach(({ side, curve, i }, row) => {
      const top = 4 + row * (BAND + 8), foot = top + BAND;
      this.gutter(context, side, curve, top);
      context.fillStyle = colours.line;
      context.fillRect(GUTTER, foot, width - GUTTER, 1);
      clipped(context, width, this.tall, () => {
        context.fillStyle = colours.ofLink(curve.kind);
        this.curve(context, side, i, width, foot);
      });
    });
  }

  gutter(context, side, curve, top) {
    context.textAlign = "left";
    context.font = "600 11px system-ui, sans-serif";
    context.fillStyle = this.colours.ink;
    context.fillText(curve.kind, 8, top + 7);
    context.textAlign = "right";
    context.fillText(percent(curve.mean), GUTTER - 8, top + 7);
    context.textAlign = "left";
    context.font = "10px system-ui, sans-serif";
    context.fillStyle = this.colours.muted;
    const text = `${this.sides.length > 1 ? `${side.label}: ` : ""}${curve.name}`;
    const most = Math.floor((GUTTER - 16) / 5.1);
    context.fillText(isolated(text.length > most ? `${text.slice(0, most - 1)}…` : text), 8, top + 20);
  }

  // One column of pixels at a time: the mean of the bins in it.
  curve(context, side, i, width, foot) {
    const { bins, full } = side.links, values = side.column.link_use, { axis } = this, size = side.makespan / bins;
    for (let x = GUTTER; x < width; x++) {
      const a = axis.time(x, width) / size, b = axis.time(x + 1, width) / size;
      if (a >= bins) break;
      let sum = 0, n = 0;
      for (let k = Math.floor(a); k < Math.min(Math.max(b, Math.floor(a) + 1), bins); k++, n++) sum += values[i * bins + k];
      const tall = n ? (sum / n / full) * BAND : 0;
      if (tall > 0) context.fillRect(x, foot - Math.max(tall, 0.75), 1, Math.max(tall, 0.75));
    }
  }

  point(e) {
    const found = this.curves[Math.floor((e.offsetY - 4) / (BAND + 8))], t = this.axis.time(e.offsetX, this.box.clientWidth);
    if (!found || this.box.classList.contains("dragged")) return tip.hide();
    const { side, curve, i } = found, { bins, full } = side.links;
    const use = e.offsetX >= GUTTER && t < side.makespan ? side.column.link_use[i * bins + Math.floor((t / side.makespan) * bins)] / full : null;
    return tip.show([h("b", {}, named(curve.name)), pairs([
      ["kind", `${curve.kind}, ${bandwidth(curve.bandwidth)}`], curve.count > 1 && ["like it", count(curve.count)], ["mean over the step", percent(curve.mean)], use !== null && [`at ${seconds(t)}`, percent(use)],
    ])], e.clientX, e.clientY);
  }
}
