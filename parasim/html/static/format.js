// Numbers as text, as parasim prints them: four significant digits, in the largest unit in which they are 1 or more.

function scaled(value, units, digits = 4) {
  let best = "";
  for (const [factor, unit] of units) {
    const number = Number((value / factor).toPrecision(digits));
    if (best && Math.abs(number) < 1) break;
    best = `${number} ${unit}`;
  }
  return best;
}

const DECIMAL = [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"], [1e15, "P"], [1e18, "E"]];

const TIMES = [[1e-9, "ns"], [1e-6, "us"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"]];

const seconds = (x) => (x === 0 ? "0 s" : scaled(x, TIMES));
const instant = (x) => (x === 0 ? "0 s" : scaled(x, TIMES.slice(0, 4), 8)); // a point of time, to tell it from its neighbours
const bytes = (x) => scaled(x, DECIMAL.map(([f, p]) => [f, `${p}B`]));
const bandwidth = (x) => (x === null ? "unlimited" : scaled(x, DECIMAL.map(([f, p]) => [f, `${p}B/s`])));
const percent = (x, digits = 1) => `${(100 * x).toFixed(digits)} %`;
const count = (x) => x.toLocaleString("en");
const signed = (text, x) => (x > 0 ? `+${text}` : x < 0 && !text.startsWith("-") ? `-${text}` : text);

const FORMATS = { seconds, bytes, share: percent, rate: (x) => count(Number(x.toPrecision(4))) };

// Times along an axis: a step of 1, 2 or 5 times a power of ten, and how to write them.
function ticks(from, to, most) {
  const raw = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw) || raw;
  const first = Math.ceil(from / step - 1e-9);
  const out = [];
  for (let i = first; i * step <= to * (1 + 1e-12) && out.length < 200; i++) out.push(i * step);
  const unit = to < 2e-6 ? [1e-9, "ns"] : to < 2e-3 ? [1e-6, "us"] : to < 2 ? [1e-3, "ms"] : [1, "s"];
  const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9)));
  return { values: out, text: (t) => `${(t / unit[0]).toFixed(digits)} ${unit[1]}` };
}

// Text of unknown direction between marks that keep it from turning what stands around it.
const isolated = (text) => `\u2068${text}\u2069`;
