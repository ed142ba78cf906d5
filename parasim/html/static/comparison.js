// Two timelines side by side: every number of one beside the other's; op by op where both ran the same program.

class ComparisonPane {
  constructor(sides, comparison) {
    const [a, b] = sides;
    const section = pane("comparison", "Comparison", "Signed: above zero the second is larger. Both are on one time axis below.");
    const rows = comparison.rows.map(([name, unit, x, y]) => {
      const off = Math.abs(y - x) <= 1e-12 * Math.max(Math.abs(x), Math.abs(y)) ? 0 : y - x; // sums in another order differ in their last bits
      const format = FORMATS[unit], points = unit === "share";
      const change = off === 0 ? "0" : points ? `${signed((100 * off).toFixed(1), off)} points` : signed(format(Math.abs(off)), off);
      const share = points || x === 0 ? "" : `${off > 0 ? "+" : ""}${percent(off / x)}`;
      return [name, format(x), format(y), change, share, bar(off, x, points)];
    });
    const numbers = table(["", a.called, b.called, "difference", "", "less, more"], rows, "Numbers of both");
    numbers.classList.add("full");
    section.append(numbers);
    section.append(comparison.ops ? this.ops(comparison.ops) : h("p", { class: "note apart" }, "Not compared op by op: ", named(comparison.why)));
  }

  ops({ ops, starts }) {
    const rows = ops.map((o) => [[o.kind, o.axis, o.phase].filter(Boolean).join(" "), count(o.ops), seconds(o.predicted_s), seconds(o.measured_s), o.error === null ? "-" : `${o.error > 0 ? "+" : ""}${percent(o.error)}`]);
    return h("details", {}, h("summary", {}, "Op by op"),
      h("p", {}, `Starts differ by ${seconds(starts.mean_s)} on average, by ${seconds(starts.max_s)} at most (`, named(starts.worst), ")."),
      table(["ops", "count", "first or predicted", "second or measured", "first / second - 1"], rows, "Durations of ops"));
  }
}

// To the left of the middle where it fell, to the right where it rose; full at a doubling or a halving.
function bar(off, x, points) {
  const share = Math.min(1, Math.abs(points ? off : x ? off / x : off ? 1 : 0)) * 50;
  return h("span", { class: "rise", "aria-hidden": "true" }, h("i", { css: off < 0 ? { right: "50%", width: `${share}%` } : { left: "50%", width: `${share}%` } }));
}
