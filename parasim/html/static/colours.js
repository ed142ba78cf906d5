// Colours by meaning, for light and dark; a bar's colour is an index so that bars of one colour can be drawn together.

const scheme = window.matchMedia("(prefers-color-scheme: dark)");

class Colours {
  constructor(data) {
    this.data = data;
    this.phases = [...Object.keys(data.phases), ""];
    this.axes = Object.keys(data.axes);
    this.refresh();
  }

  refresh() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "muted", "line", "panel", "idle", "accent", "warn", "band"]) this[name] = style.getPropertyValue(`--${name}`).trim();
    this.dark = scheme.matches;
    this.list = [...this.phases.map((p) => this.shade(this.data.phases[p] || this.data.other)), ...this.axes.map((a) => this.shade(this.data.axes[a]))];
    this.inks = this.list.map((c) => (brightness(c) < 140 ? "#FFFFFF" : "#1A1A1A"));
    this.pale = this.axes.map((a) => mixed(this.shade(this.data.axes[a]), this.panel, this.dark ? 0.42 : 0.36));
  }

  shade(colour) { return (this.dark && this.data.on_dark[colour]) || colour; }
  phase(name) { const at = this.phases.indexOf(name); return at < 0 ? this.phases.length - 1 : at; }
  axis(name) { return this.phases.length + this.axes.indexOf(name); }
  ofAxis(name) { return this.list[this.axis(name)]; }
  ofCategory(name) { return this.shade(this.data.categories[name]); }
  ofLink(kind) { return this.shade(this.data.links[kind] || this.data.other); }
  // A scale from dark to light that keeps its order in every form of colour blindness (after cividis: Nuñez, Anderton and Renslow 2018).
  scale(x) {
    const stops = ["#00224E", "#35456C", "#666970", "#948E77", "#C8B866", "#FEE838"];
    const at = Math.min(Math.max(this.dark ? 0.12 + 0.88 * x : x, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
    return mixed(stops[i + 1], stops[i], at - i);
  }
}

const channels = (c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
const brightness = (c) => { const [r, g, b] = channels(c); return 0.299 * r + 0.587 * g + 0.114 * b; };
function mixed(a, b, share) {
  const [x, y] = [channels(a), channels(b)];
  return `#${x.map((v, i) => Math.round(share * v + (1 - share) * y[i]).toString(16).padStart(2, "0")).join("")}`;
}
