// The map of items: two principal components of what searches know of them, coloured by the round that scored them.

import { html, legendEntry, svg } from "./dom.js";
import { extent, roundColour, share } from "./scale.js";
import { percent } from "./words.js";

const [WIDTH, HEIGHT, EDGE] = [320, 240, 8];

export class ItemMap {
  /** Draw all items of a view's map and story; `show` then colours those of some rounds. */
  constructor(view) {
    this.rounds = view.rounds;
    const scored = view.rounds.all.flatMap((round) => round.items).filter((item) => item.x !== null);
    const others = (view.map?.items ?? []).filter((item) => !view.rounds.roundOf.has(item.id));
    const all = [...others, ...scored];
    const [across, up] = [share(...extent(all.map((item) => item.x))), share(...extent(all.map((item) => item.y)))];
    this.place = (item) => [EDGE + across(item.x) * (WIDTH - 2 * EDGE), EDGE + (1 - up(item.y)) * (HEIGHT - 2 * EDGE)];
    this.dots = new Map(scored.map((item) => [item.id, this.dot(item, 2.2)]));
    const missed = missedItems(view, all).map((item) => this.cross(item));
    const background = others.map((item) => this.dot(item, 1.5));
    this.drawing = svg(
      "svg",
      { class: "map", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" },
      svg("g", {}, background),
      svg("g", {}, [...this.dots.values()]),
      svg("g", {}, missed),
    );
    this.figure = html(
      "figure",
      {},
      html("figcaption", {}, "Map of items"),
      this.drawing,
      this.key(view, missed.length),
    );
  }

  /** Colour what was scored up to a round; ring the best so far. */
  show(round) {
    const best = new Set(this.rounds.best[round].map((item) => item.id));
    for (const [id, circle] of this.dots) {
      const own = this.rounds.roundOf.get(id);
      const isScored = own <= round;
      circle.classList.toggle("scored", isScored);
      circle.classList.toggle("now", own === round);
      circle.classList.toggle("best", best.has(id));
      circle.setAttribute("r", !isScored ? 1.5 : best.has(id) ? 4.2 : own === round ? 3.6 : 2.8);
      if (isScored) circle.setAttribute("fill", roundColour(own, this.rounds.last + 1));
      else circle.removeAttribute("fill");
      if (best.has(id)) circle.parentNode?.append(circle); // above the others
    }
    const scored = this.rounds.pairs[round];
    this.drawing.setAttribute(
      "aria-label",
      `Map of items: ${scored} are scored after round ${round + 1}, the best are ringed`,
    );
  }

  dot(item, radius) {
    const [cx, cy] = this.place(item);
    return svg(
      "circle",
      { cx: cx.toFixed(1), cy: cy.toFixed(1), r: radius, "data-item": item.id },
      svg("title", {}, item.label),
    );
  }

  cross(item) {
    const [x, y] = this.place(item).map((value) => Number(value.toFixed(1)));
    const path = `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`;
    return svg("path", { class: "missed", d: path, "data-item": item.id }, svg("title", {}, `missed: ${item.label}`));
  }

  key(view, nMissed) {
    const shares = view.map?.shares ?? [];
    const axes =
      shares.length === 2 &&
      `axes: principal components, ${percent(shares[0])} and ${percent(shares[1])} of the variance`;
    return html(
      "p",
      { class: "legend" },
      legendEntry("unscored", "not scored"),
      legendEntry("ramp", "first to last round"),
      legendEntry("ring", "among the best"),
      nMissed > 0 && legendEntry("cross", "missed"),
      axes && html("span", { class: "wide" }, axes),
    );
  }
}

function missedItems(view, all) {
  if (!view.truth) return [];
  const missed = new Set(view.truth.hits.map((hit) => hit.id).filter((id) => !view.rounds.roundOf.has(id)));
  return all.filter((item) => missed.has(item.id));
}
