// What each axis of parallelism sends, and how much of that time is hidden behind computing.

class CommunicationPane {
  constructor(sides, axis, colours) {
    const section = pane("communication", "Communication", "Means over all ranks and one step. Exposed: compute waits for it; overlapped: it runs beside compute.");
    const longest = Math.max(...sides.flatMap((side) => side.communication.axes.map((a) => a.exposed_s + a.overlapped_s)), 0);
    if (!longest) section.append(h("p", { class: "note" }, "Nothing is communicated."));
    for (const side of longest ? sides : []) {
      if (sides.length > 1) section.append(h("h3", {}, side.label));
      section.append(this.axes(side, colours, longest), this.kinds(side));
    }
  }

  axes(side, colours, longest) {
    const { axes, step_s: step } = side.communication, share = (x) => ({ width: `${(100 * x) / longest}%` });
    const rows = axes.map((a) => [
      h("b", {}, a.axis), bytes(a.bytes), seconds(a.exposed_s), percent(a.exposed_s / step), seconds(a.overlapped_s),
      h("span", { class: "bar wide" },
        h("i", { css: { ...share(a.exposed_s), background: colours.ofAxis(a.axis) }, title: `exposed ${seconds(a.exposed_s)}` }),
        h("i", { css: { ...share(a.overlapped_s), background: colours.pale[colours.axes.indexOf(a.axis)] }, title: `overlapped ${seconds(a.overlapped_s)}` })),
    ]);
    return table(["axis", "sent per rank", "exposed", "of the step", "overlapped", "exposed, then overlapped (pale)"], rows, "Communication by axis");
  }

  kinds(side) {
    const { data } = side;
    const rows = side.communication.kinds.map((k) => [
      `${k.axis < 0 ? "" : `${data.axes[k.axis]} `}${k.kind}, ${side.phases[k.phase]}`, count(Number(k.count.toPrecision(6))), k.bytes > 0 ? bytes(k.bytes) : "-", seconds(k.mean_s),
      k.bytes > 0 && k.mean_s > 0 ? bandwidth(k.bytes / k.mean_s) : "-", seconds(k.total_s),
    ]);
    return h("details", {}, h("summary", {}, "By kind of transfer"),
      table(["transfers", "per rank and step", "bytes sent by one", "seconds of one", "rate", "seconds of all"], rows, "Communication by kind of transfer"));
  }
}
