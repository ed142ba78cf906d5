// Where the lanes of the timeline stand: a block per rank, in order of depth, the two sides of a comparison under each other.

const CALLS = 18, OPS = 13, LANE = 9, GAP = 1, APART = 9, RULER = 22;

// Blocks of {side, rank, y, height, lanes: [{kind, name, y, height, low, high}]} and the height of all.
function blocks(sides, compact) {
  const ranks = sides.flatMap((side) => side.ranks.map((rank) => ({ side, rank })));
  const bare = new Set(sides.filter((side) => side.ranks.every((rank) => !rank.stages.length))); // as what a profiler saw of one rank
  const depth = ({ side, rank }) => rank.stages.length ? rank.stages[0] : bare.has(side) ? 0 : -1;
  const place = new Map(sides.map((side) => [side, new Map()]));
  for (const { side, rank } of ranks) { // how manieth rank of its stage, so that the sides of a comparison stand in turn
    const of = place.get(side), stage = depth({ side, rank });
    of.set(stage, (of.get(stage) ?? -1) + 1);
    rank.turn = of.get(stage);
  }
  ranks.sort((a, b) => depth(a) - depth(b) || a.rank.turn - b.rank.turn || a.side.index - b.side.index);
  let y = RULER + 5;
  const out = ranks.map(({ side, rank }, i) => {
    const block = { side, rank, y, lanes: lanesOf(rank, y, compact) };
    const last = block.lanes[block.lanes.length - 1];
    block.height = last.y + last.height - y;
    const next = ranks[i + 1];
    const together = next && next.side !== side && next.rank.turn === rank.turn && depth(next) === depth({ side, rank });
    y += block.height + (compact ? 3 : APART) + (sides.length > 1 && !together ? 6 : 0);
    block.ends = !together;
    return block;
  });
  return { blocks: out, height: y + 4 };
}

function lanesOf(rank, top, compact) {
  const [, low, high] = rank.lanes[0];
  const lanes = [{ kind: "runs", name: "compute", y: top, height: CALLS, low: rank.runs[0], high: rank.runs[1], ops: [low, high] }];
  if (compact) return lanes;
  lanes.push({ kind: "ops", name: "ops", y: top + CALLS + GAP, height: OPS, low, high });
  let y = top + CALLS + OPS + 2 * GAP;
  for (const [name, a, b] of rank.lanes.slice(1)) {
    lanes.push({ kind: "ops", name, y, height: LANE, low: a, high: b });
    y += LANE + GAP;
  }
  return lanes;
}

// The block and the lane at height y, if there is one.
function laneAt(found, y) {
  for (const block of found) {
    if (y < block.y || y >= block.y + block.height) continue;
    const lane = block.lanes.find((l) => y >= l.y - 0.5 && y < l.y + l.height + 0.5);
    return lane ? { block, lane } : { block };
  }
  return {};
}
