// Building elements; text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function element(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "css") for (const [property, v] of Object.entries(value)) made.style.setProperty(property, v);
    else if (name === "on") for (const [event, f] of Object.entries(value)) made.addEventListener(event, f);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

const h = (tag, attributes, ...children) => element(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => element(document.createElementNS(SVG, tag), attributes, children);

// What a person named, kept apart from the direction of the text around it.
const named = (text) => h("bdi", {}, String(text));

function table(head, rows, label) {
  const cell = (tag, value, i) => h(tag, { class: i === 0 ? "" : "number", scope: tag === "th" ? "col" : null }, value);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, h("tr", {}, head.map((v, i) => cell("th", v, i)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((v, i) => cell("td", v, i)))))));
}

// A pane with its heading; what is in `tools` stands at the right of it.
function pane(id, title, about, tools = []) {
  const made = h("section", { id, "aria-labelledby": `${id}-title`, tabindex: -1 },
    h("div", { class: "head" }, h("h2", { id: `${id}-title` }, title), h("p", { class: "about" }, about || ""), h("div", { class: "tools" }, tools)));
  document.getElementById("panes").append(made);
  document.getElementById("nav").append(h("a", { href: `#${id}` }, title));
  return made;
}

function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([colour, text]) => h("li", {}, h("i", { css: { background: colour } }), text)));
}

// The small window beside the pointer.
const tip = {
  show(content, x, y) {
    const box = document.getElementById("tip");
    box.replaceChildren(...content);
    box.hidden = false;
    const { offsetWidth: w, offsetHeight: t } = box, wide = document.documentElement.clientWidth, tall = window.innerHeight;
    box.style.left = `${Math.max(4, x + 14 + w > wide ? x - w - 14 : x + 14)}px`;
    box.style.top = `${Math.max(4, y + 16 + t > tall ? Math.min(y - t - 12, tall - t - 4) : y + 16)}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

const pairs = (rows) => h("dl", {}, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

// A canvas as wide as its box, sharp on every screen; `draw(context, width, height)`.
function canvas(height, attributes) {
  const made = h("canvas", { ...attributes });
  made.fit = (width, tall = height) => {
    const ratio = window.devicePixelRatio || 1;
    if (made.width !== Math.round(width * ratio) || made.height !== Math.round(tall * ratio)) {
      made.width = Math.round(width * ratio);
      made.height = Math.round(tall * ratio);
      made.style.width = `${width}px`;
      made.style.height = `${tall}px`;
    }
    const context = made.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, tall);
    context.textBaseline = "middle";
    return context;
  };
  return made;
}
