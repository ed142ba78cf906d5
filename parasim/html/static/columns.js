// Columns as Python packed them: [type, offset, length] by name over one compressed block.

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

async function unpack(columns) {
  const packed = Uint8Array.from(atob(columns.data), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const block = await new Response(stream).arrayBuffer();
  const out = {};
  for (const [name, [type, offset, length]] of Object.entries(columns.where)) out[name] = new TYPES[type](block, offset, length);
  return out;
}

// Differences modulo 2**32 become the numbers themselves, in place.
function summed(steps) {
  for (let i = 1; i < steps.length; i++) steps[i] += steps[i - 1];
  return steps;
}

// Gaps and durations in ticks become start and end in seconds. `heads` are the positions from which time counts from zero again.
function intervals(gaps, durations, heads, tick) {
  const n = gaps.length, start = new Float64Array(n), end = new Float64Array(n);
  const fresh = new Set(heads);
  let now = 0;
  for (let i = 0; i < n; i++) {
    if (fresh.has(i)) now = 0;
    now += gaps[i];
    start[i] = now * tick;
    now += durations[i];
    end[i] = now * tick;
  }
  return { start, end };
}

// The first index in [low, high) at which values exceed x; high where none does. Values ascend.
function above(values, x, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Pairs (a, b) by a and by b: of(i) lists the other ends.
class Pairs {
  constructor(a, b) {
    this.forward = Pairs.index(a, b);
    this.backward = Pairs.index(b, a);
  }

  static index(keys, values) {
    const out = new Map();
    for (let i = 0; i < keys.length; i++) {
      const known = out.get(keys[i]);
      if (known) known.push(values[i]);
      else out.set(keys[i], [values[i]]);
    }
    return out;
  }

  from(i) { return this.forward.get(i) || []; }
  to(i) { return this.backward.get(i) || []; }
}
