// Bars on a canvas: only those in sight, and those thinner than a pixel as one.

// Collects rectangles by colour, so that a canvas changes its colour a dozen times and not a hundred thousand.
class Painter {
  constructor(colours) {
    this.colours = colours;
    this.boxes = colours.map(() => []);
  }

  add(colour, x, y, width, height) { this.boxes[colour].push(x, y, width, height); }

  flush(context) {
    this.boxes.forEach((boxes, i) => {
      context.fillStyle = this.colours[i];
      for (let k = 0; k < boxes.length; k += 4) context.fillRect(boxes[k], boxes[k + 1], boxes[k + 2], boxes[k + 3]);
    });
    this.boxes = this.colours.map(() => []);
  }
}

// Paints bars [low, high) of a lane between y and y + height. `colour(i)` is an index; `each(i, x, width)` is told of bars with room for words.
// In a pixel that several bars share the colour that fills most of it wins.
function bars(painter, axis, width, lane, times, low, high, colour, each) {
  const { start, end } = times, scale = (width - GUTTER) / axis.span, origin = GUTTER - axis.from * scale;
  const { y, height } = lane, shares = new Float64Array(painter.colours.length);
  let pixel = -1, first = -1, last = 0, before = -1;
  const settle = () => { // the pixel that was being filled
    if (pixel < 0) return;
    let best = 0;
    for (let c = 1; c < shares.length; c++) if (shares[c] > shares[best]) best = c;
    if (before === best && last === pixel) last = pixel + 1;
    else {
      if (before >= 0) painter.add(before, first, y, last - first, height);
      [first, last, before] = [pixel, pixel + 1, best];
    }
    shares.fill(0);
    pixel = -1;
  };
  const close = () => { // the run of like pixels
    settle();
    if (before >= 0) painter.add(before, first, y, last - first, height);
    before = -1;
  };
  for (let i = above(end, axis.from, low, high); i < high && start[i] < axis.to; i++) {
    const a = start[i] * scale + origin, b = end[i] * scale + origin;
    if (b - a < 1.5) {
      const middle = Math.floor((a + b) / 2);
      for (let at = Math.floor(a); at <= b; at++) { // two pixels at most, three where it only touches the outer ones
        const inside = Math.min(b, at + 1) - Math.max(a, at);
        if (inside < 0.15 && at !== middle) continue;
        if (at !== pixel) { settle(); pixel = at; }
        shares[colour(i)] += Math.max(inside, 1e-6);
      }
    } else {
      close();
      const from = Math.max(a, GUTTER - 2), to = Math.min(b, width + 2);
      if (to - from > 4) painter.add(colour(i), from, y, to - from - 0.6, height);
      else painter.add(colour(i), Math.round(from), y, Math.max(Math.round(to) - Math.round(from), 1), height); // no blurred edges
      if (each && to - from > 9) each(i, from, to - from);
    }
  }
  close();
}

// Words in the middle of a box, cut where they would leave it; nothing where not even two letters fit.
function words(context, text, x, y, width) {
  let shown = text;
  let wide = context.measureText(shown).width;
  if (wide > width - 4) {
    const fits = Math.floor((shown.length * (width - 8)) / wide) - 1;
    if (fits < 3) return;
    shown = `${shown.slice(0, fits)}…`;
    wide = context.measureText(shown).width;
    if (wide > width - 2) return;
  }
  context.fillText(shown, x + (width - wide) / 2, y);
}
