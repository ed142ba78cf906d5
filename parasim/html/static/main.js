// Reads the data, builds the panes, and draws them whenever the time axis, the size or the scheme changes.

async function main() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colours = new Colours(data.colours);
  const sides = await Promise.all(data.sides.map(async (raw, i) => new Side(data, raw, await unpack(raw.columns), colours, i)));
  heading(data, sides);
  const axis = new Axis(Math.max(...sides.map((side) => side.makespan)));
  let timeline = build(data, sides, axis, colours), width = 0;
  new ResizeObserver(() => {
    if (timeline.box.clientWidth === width) return;
    width = timeline.box.clientWidth;
    timeline.lay();
    axis.changed();
  }).observe(document.body);
  scheme.addEventListener("change", () => { // the panes anew, the time axis as it was
    colours.refresh();
    for (const id of ["panes", "nav"]) document.getElementById(id).replaceChildren();
    axis.listeners = [];
    timeline = build(data, sides, axis, colours);
    axis.changed();
  });
  axis.changed();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds since the page began to open
  }));
}

function build(data, sides, axis, colours) {
  new SummaryPane(sides, colours);
  if (data.comparison) new ComparisonPane(sides, data.comparison);
  const timeline = new TimelinePane(sides, axis, colours);
  new MemoryPane(sides, axis, colours);
  new LinksPane(sides, axis, colours);
  new CommunicationPane(sides, axis, colours);
  new LayoutPane(sides, axis, colours);
  new NotesPane(sides);
  return timeline;
}

function heading(data, sides) {
  document.getElementById("title").append(...sides.flatMap((side, i) => [i ? h("span", { class: "kind" }, " against ") : "", named(side.name)]));
  const facts = sides.map((side) => {
    const p = side.report && side.report.provenance;
    return p ? [p.model, `${count(side.world)} × ${p.accelerator}`, p.cluster, side.source] : [side.world === 1 ? "1 rank" : `${count(side.world)} ranks`, side.source];
  });
  const lines = sides.length > 1 ? sides.map((side, i) => [`${side.called}: `, ...facts[i]]) : facts;
  document.getElementById("subtitle").append(...lines.map((line) => h("span", {}, line.map((x, i) => [i && !String(line[i - 1]).endsWith(": ") ? " · " : "", named(x)]))));
}

main().catch((error) => {
  const old = typeof DecompressionStream === "undefined" ? " This browser is too old to unpack them." : "";
  document.getElementById("panes").append(h("p", { class: "note", role: "alert" }, `The data of this page could not be shown.${old} (${error.message})`));
  throw error;
});
