// The numbers of the step, where its time goes, its stages; what was assumed and how sure it is.

class SummaryPane {
  constructor(sides, colours) {
    this.section = pane("summary", "Summary", "");
    for (const side of sides) {
      if (sides.length > 1) this.section.append(h("h3", {}, `${side.label}: `, named(side.name)));
      this.section.append(this.tiles(side), this.step(side, colours));
      if (side.report && sides.length === 1) this.section.append(this.stages(side, colours));
    }
  }

  tiles(side) {
    const r = side.report || {}, m = r.memory || {}, tile = (name, value, about, warn) => h("div", { class: warn ? "warn" : "" }, h("dt", {}, name), h("dd", {}, value, about ? h("small", {}, about) : null));
    const peak = Math.max(...side.layout.classes.map((c) => c.peak_bytes)), fits = side.capacity === null || peak <= side.capacity;
    const room = side.capacity === null ? "" : fits ? `${bytes(side.capacity - peak)} free of ${bytes(side.capacity)}` : `does not fit ${bytes(side.capacity)}`;
    return h("dl", { class: "tiles" }, [
      tile("step time", seconds(side.window[1] - side.window[0]), side.source),
      r.tokens_per_s && tile("throughput", `${FORMATS.rate(r.tokens_per_s)}`, `tokens/s, ${FORMATS.rate(r.tokens_per_s_per_device)} per device`),
      typeof r.mfu === "number" && tile("MFU", percent(r.mfu), typeof r.hfu === "number" ? `HFU ${percent(r.hfu)}` : ""),
      typeof r.bubble_makespan === "number" && tile("bubble", percent(r.bubble_makespan), "not compute on the busiest rank"),
      peak > 0 && tile("peak memory", bytes(peak), room, !fits),
      typeof r.cost_usd_per_step === "number" && tile("cost", `${Number(r.cost_usd_per_step.toPrecision(4))} USD`, "per step"),
      tile(side.world === 1 ? "rank" : "ranks", count(side.world), side.kept < side.world ? `${count(side.kept)} ${side.source} for all` : `every one ${side.source}`),
    ]);
  }

  // The step of the mean rank as one bar.
  step(side, colours) {
    const c = side.communication, other = c.compute_s - c.optimizer_s;
    const parts = [["compute", other, colours.list[colours.phase("B")]], ["optimizer", c.optimizer_s, colours.list[colours.phase("S")]], ...c.axes.map((a) => [`exposed ${a.axis}`, a.exposed_s, colours.ofAxis(a.axis)]), ["idle", c.idle_s, colours.idle]].filter(([, x]) => x > 0);
    const words = parts.map(([name, x]) => `${name} ${seconds(x)}, ${percent(x / c.step_s)}`);
    return h("figure", { class: "step" }, h("figcaption", {}, "a step of the mean rank"),
      h("div", { class: "bar tall", role: "img", "aria-label": words.join("; ") }, parts.map(([, x, colour], i) => h("i", { css: { width: `${(100 * x) / c.step_s}%`, background: colour }, title: words[i] }))),
      legend(parts.map(([name, x, colour]) => [colour, [h("b", {}, name), ` ${seconds(x)} `, h("span", { class: "kind" }, percent(x / c.step_s))]])));
  }

  stages(side, colours) {
    const { stages, memory } = side.report;
    if (!Array.isArray(stages) || !stages.length) return "";
    const axes = Object.keys(stages[0].exposed_s).filter((a) => stages.some((x) => x.exposed_s[a] > 0));
    const rows = stages.map((x, i) => [String(x.stage), String(x.rank), seconds(x.compute_s), ...axes.map((a) => seconds(x.exposed_s[a])), seconds(x.idle_s), seconds(x.slack_s), memory.per_stage_peak_bytes[i] > 0 ? bytes(memory.per_stage_peak_bytes[i]) : "-", this.account(x, axes, colours)]);
    const made = table(["stage", "rank", "compute", ...axes.map((a) => `exposed ${a}`), "idle", "slack", "peak memory", "compute, exposed, idle"], rows, "Stages");
    made.classList.add("full");
    return made;
  }

  // The step of the rank of one stage.
  account(x, axes, colours) {
    const step = x.compute_s + x.idle_s + axes.reduce((sum, a) => sum + x.exposed_s[a], 0);
    const parts = [["compute", x.compute_s, colours.list[colours.phase("B")]], ...axes.map((a) => [`exposed ${a}`, x.exposed_s[a], colours.ofAxis(a)]), ["idle", x.idle_s, colours.idle]];
    return h("span", { class: "bar", "aria-hidden": "true" }, parts.filter(([, t]) => t > 0).map(([name, t, colour]) => h("i", { css: { width: `${(100 * t) / step}%`, background: colour }, title: `${name} ${percent(t / step)}` })));
  }
}

class NotesPane {
  constructor(sides) {
    const section = pane("assumptions", "Assumptions and uncertainty", "What the numbers rest on, and how far such predictions were off.");
    for (const side of sides) {
      const r = side.report, lines = (items) => h("ul", {}, items.map((x) => h("li", {}, named(x))));
      if (sides.length > 1) section.append(h("h3", {}, side.label));
      if (!r) {
        section.append(h("p", { class: "note" }, side.source === "measured" ? "Measured: nothing was assumed." : "This page was made from a timeline alone; the assumptions are in the report.json of its run."));
        continue;
      }
      section.append(h("h4", {}, "Uncertainty"), h("p", {}, r.uncertainty ? named(r.uncertainty.says) : "Unknown: predictions with this profile and accelerator were not compared with published steps."));
      section.append(h("h4", {}, "Assumed"), lines(r.assumptions || []), h("h4", {}, "Not in memory"), lines((r.memory && r.memory.excluded) || []));
      section.append(h("details", {}, h("summary", {}, "Provenance"), pairs([...flat(r.provenance || {}), ["engine", `${count(side.ops)} ops of ${side.kept} ranks${r.engine && r.engine.events ? `, ${count(r.engine.events)} events` : ""}`]].map(([k, v]) => [named(k), named(v)]))));
    }
  }
}

// Nested names and values as one list.
function flat(value, path = "") {
  return Object.entries(value).flatMap(([k, v]) => (v !== null && typeof v === "object" ? flat(v, `${path}${k}.`) : [[`${path}${k}`, String(v)]]));
}
