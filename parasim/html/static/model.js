// One side of the page: its columns as typed arrays, and words for its ops.

const COMPUTE = 0, COLLECTIVE = 1, P2P = 2;

class Side {
  constructor(data, raw, columns, colours, index) {
    Object.assign(this, raw);
    this.data = data;
    this.index = index;
    this.column = columns;
    const { tick } = raw;
    const heads = { op: raw.ranks.flatMap((r) => r.lanes.map((lane) => lane[1])), run: raw.ranks.map((r) => r.runs[0]), gap: raw.ranks.map((r) => r.gaps[0]) };
    for (const name of ["op", "run", "gap"]) this[name] = intervals(columns[`${name}_gap`], columns[`${name}_seconds`], heads[name], tick);
    for (const name of ["run_first", "edge_a", "edge_b", "partner_a", "partner_b", "memory_time"]) summed(columns[name]);
    this.held = data.categories.map((_, i) => summed(columns[`memory_${i}`]));
    this.times = Float64Array.from(columns.memory_time, (t) => t * tick);
    this.waits = new Pairs(columns.edge_a, columns.edge_b);
    this.partners = new Pairs(columns.partner_a, columns.partner_b);
    this.keyColour = Uint8Array.from(raw.keys, ([kind, phase, axis]) =>
      kind === COMPUTE ? colours.phase(raw.phases[phase]) : colours.axis(data.names[axis < 0 ? data.names.length - 1 : axis]));
    this.offset = raw.window[0]; // the step begins here
  }

  key(i) {
    const [kind, phase, axis, stage, layer, detail] = this.keys[this.column.op_key[i]];
    return { kind, phase: this.phases[phase], axis: axis < 0 ? "" : this.data.axes[axis], stage, layer, detail: this.details[detail] };
  }

  colour(i) { return this.keyColour[this.column.op_key[i]]; }

  // The name of an op as reports write it: `F3 layer 7`, `tp B0 layer 2`, `pp send 1`.
  opName(i) {
    const { kind, axis, layer } = this.key(i);
    const word = this.opShort(i);
    return `${kind !== COMPUTE && axis && !word.startsWith(axis) ? `${axis} ` : ""}${word}${layer >= 0 ? ` layer ${layer}` : ""}`;
  }

  // Phase and microbatch alone.
  opShort(i) {
    const { phase } = this.key(i), microbatch = this.column.op_microbatch[i];
    return microbatch < 0 ? phase : phase.length === 1 ? `${phase}${microbatch}` : `${phase} ${microbatch}`;
  }

  rankOf(i) { return this.ranks.find((r) => r.lanes[0][1] <= i && i < r.lanes[r.lanes.length - 1][2]); }
  laneOf(i) { const rank = this.rankOf(i); return rank.lanes.findIndex(([, low, high]) => low <= i && i < high); }
  bytes(i) { return this.sizes[this.column.op_size[i]]; }
  linksOf(i) { return this.link_lists[this.column.op_links[i]].map(([link, sent]) => [...this.links.names[link], sent]); } // name, kind, bytes/s, how many, bytes
  waited(i) { return this.column.op_wait[i] * this.tick; }

  // What it is called beside the other side, and alone.
  get label() { return this.called || this.source; }
  rankName(rank) { return `rank ${rank.rank}${rank.count > 1 ? ` (stands for ${count(rank.count)})` : ""}`; }
}
