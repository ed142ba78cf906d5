// The one time axis that all panes share: what is seen of it, and how keys, wheel and pointer move it.

const GUTTER = 188; // pixels at the left of every pane that has the time axis
const CLOSEST = 2e-8; // of the whole: no deeper zoom

class Axis {
  constructor(end) {
    this.end = end > 0 ? end : 1;
    this.listeners = [];
    this.reset();
  }

  get span() { return this.to - this.from; }

  set(from, to) {
    const span = Math.min(this.end, Math.max(to - from, this.end * CLOSEST));
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(0, middle - span / 2), this.end - span);
    this.to = this.from + span;
    this.changed();
  }

  reset() { this.set(0, this.end); }
  pan(share) { this.set(this.from + share * this.span, this.to + share * this.span); }
  zoom(factor, at = (this.from + this.to) / 2) {
    const span = Math.min(this.span / factor, this.end);
    const from = at - (at - this.from) * (span / this.span);
    this.set(from, from + span);
  }

  // Everything is drawn again at most once per frame.
  changed() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const draw of this.listeners) draw();
    });
  }

  // Pixels of time `t` in a pane of some width, and back.
  x(t, width) { return GUTTER + ((t - this.from) / this.span) * (width - GUTTER); }
  time(x, width) { return this.from + ((x - GUTTER) / (width - GUTTER)) * this.span; }

  // Keys, wheel and drag on `box`, whose width is that of its pane.
  attach(box) {
    box.addEventListener("keydown", (e) => this.key(e));
    box.addEventListener("wheel", (e) => this.wheel(e, box), { passive: false });
    box.addEventListener("pointerdown", (e) => this.drag(e, box));
    box.addEventListener("dblclick", (e) => this.zoom(4, this.time(e.offsetX, box.clientWidth)));
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || e.shiftKey && e.key.startsWith("Arrow")) return;
    const moves = {
      ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), a: () => this.pan(-0.1), d: () => this.pan(0.1),
      "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), w: () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), _: () => this.zoom(1 / 1.5), s: () => this.zoom(1 / 1.5),
      0: () => this.reset(), Home: () => this.set(0, this.span), End: () => this.set(this.end - this.span, this.end),
    };
    const move = moves[e.key];
    if (!move || e.target.matches("select, input, a, button")) return;
    e.preventDefault();
    move();
  }

  wheel(e, box) {
    const across = Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey;
    if (!e.ctrlKey && !e.metaKey && !across) return; // the page, or the pane, scrolls
    e.preventDefault();
    const x = e.clientX - box.getBoundingClientRect().left;
    if (across && !e.ctrlKey && !e.metaKey) this.pan((e.deltaX || e.deltaY) / Math.max(1, box.clientWidth - GUTTER));
    else this.zoom(Math.exp(-Math.max(-240, Math.min(240, e.deltaY)) / 240), this.time(Math.max(GUTTER, x), box.clientWidth));
  }

  drag(e, box) {
    if (e.button !== 0 || e.offsetX < GUTTER || e.offsetX > box.clientWidth) return;
    const { from, span } = this, x = e.clientX;
    const move = (m) => {
      if (Math.abs(m.clientX - x) < 3 && !box.classList.contains("dragged")) return;
      box.classList.add("dragged");
      const shift = ((x - m.clientX) / (box.clientWidth - GUTTER)) * span;
      this.set(from + shift, from + shift + span);
    };
    const stop = () => {
      window.removeEventListener("pointermove", move);
      setTimeout(() => box.classList.remove("dragged"), 0);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop, { once: true });
    window.addEventListener("pointercancel", stop, { once: true });
  }
}

// The ruler of a pane, with faint lines through it.
function ruler(context, axis, colours, width, top, bottom, at) {
  const { values, text } = ticks(axis.from, axis.to, (width - GUTTER) / 96);
  context.font = "10.5px system-ui, sans-serif";
  context.textAlign = "left";
  for (const t of values) {
    const x = Math.round(axis.x(t, width)) + 0.5;
    context.fillStyle = colours.line;
    context.fillRect(x - 0.5, top, 1, bottom - top);
    context.fillStyle = colours.muted;
    const words = text(t);
    if (x + 4 + context.measureText(words).width < width) context.fillText(words, x + 4, at);
  }
}

// The part of a pane where time is: nothing is drawn into the gutter.
function clipped(context, width, height, draw) {
  context.save();
  context.beginPath();
  context.rect(GUTTER, 0, width - GUTTER, height);
  context.clip();
  draw();
  context.restore();
}
