// Curves of recall: that of a search as it goes on, and that which an index promises.

import { html, legendEntry, svg } from "./dom.js";
import { roundColour, share } from "./scale.js";
import { TARGET } from "./rounds.js";
import { count, counted, percent } from "./words.js";

const [WIDTH, HEIGHT] = [320, 240];
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 10, 26, 34];

/** The curve of a view's rounds; `go(round)` when a point is chosen. */
export function drawCurve(view, go) {
  const { rounds, round } = view;
  const across = share(0, rounds.pairs[rounds.last]);
  const hasEstimate = rounds.recalls.some((recall) => recall !== null);
  const truth = view.truth && new Set(view.truth.hits.map((hit) => hit.id));
  const ids = truth ?? new Set(rounds.best[rounds.last].map((item) => item.id));
  const found = rounds.found(ids);
  const drawing = svg(
    "svg",
    { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": spoken(view, hasEstimate) },
    axes(across, ticks(rounds.pairs[rounds.last]), "items scored"),
    stopMark(rounds, across),
    (truth || !hasEstimate) && steps(rounds, found, across),
    hasEstimate && line(rounds.pairs, rounds.recalls, across, "estimate"),
    svg("line", {
      class: "cursor",
      x1: x(across(rounds.pairs[round])),
      x2: x(across(rounds.pairs[round])),
      y1: TOP,
      y2: HEIGHT - BOTTOM,
    }),
    rounds.pairs.map((pairs, place) => {
      const value = hasEstimate ? rounds.recalls[place] : found[place];
      return value !== null && point(x(across(pairs)), y(value), { place, rounds, isHere: place === round, go });
    }),
  );
  return html(
    "figure",
    {},
    html("figcaption", {}, "Recall as it goes"),
    drawing,
    key({ truth, hasEstimate }),
    advice(view),
  );
}

/** The recall to expect of each budget, one line for each k. */
export function drawExpected(curves) {
  const logs = curves.flatMap((curve) => curve.points.map((each) => Math.log(each.budget)));
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const across = (budget) => share(low, high)(Math.log(budget));
  const budgets = [...new Set(curves.flatMap((curve) => curve.points.map((each) => each.budget)))];
  const lines = curves.map((curve, place) => expectedLine(curve, across, roundColour(place, curves.length)));
  const names = curves.map((curve) => `top ${curve.k}`).join(", ");
  return svg(
    "svg",
    {
      class: "curve",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `Expected recall by budget for the ${names}`,
    },
    axes(across, budgets, "budget: items scored for each query"),
    lines,
  );
}

const x = (part) => Number((LEFT + part * (WIDTH - LEFT - RIGHT)).toFixed(1));
const y = (recall) => Number((HEIGHT - BOTTOM - recall * (HEIGHT - TOP - BOTTOM)).toFixed(1));

function axes(across, values, name) {
  const levels = [0, 0.5, 1].map((level) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(level), y2: y(level) }),
    svg("text", { x: LEFT - 6, y: y(level) + 4, class: "right" }, `${100 * level}%`),
  ]);
  const labels = values.map((value) =>
    svg("text", { x: x(across(value)), y: HEIGHT - BOTTOM + 14, class: "middle" }, count(value)),
  );
  return svg("g", { class: "axes" }, levels, labels, svg("text", { x: x(0.5), y: HEIGHT - 4, class: "middle" }, name));
}

function ticks(most) {
  const size = 10 ** Math.floor(Math.log10(most));
  const step = [0.2, 0.5, 1, 2, 5].map((factor) => factor * size).find((each) => each >= 1 && most / each <= 5) ?? most;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => Math.round(place * step));
}

function line(pairs, recalls, across, kind) {
  const points = pairs.flatMap((value, place) =>
    recalls[place] === null ? [] : [`${x(across(value))},${y(recalls[place])}`],
  );
  return svg("polyline", { class: kind, points: points.join(" ") });
}

/** What was found is known for sure, and so it is drawn in steps. */
function steps(rounds, found, across) {
  const path = rounds.pairs.map(
    (pairs, place) => `${place ? "H" : "M"}${x(across(pairs))}${place ? "V" : " "}${y(found[place])}`,
  );
  return svg("path", { class: "actual", d: path.join("") });
}

function point(cx, cy, { place, rounds, isHere, go }) {
  const colour = roundColour(place, rounds.last + 1);
  const label = `round ${place + 1}`;
  return svg(
    "g",
    { class: isHere ? "point here" : "point", on: { click: () => go(place) } },
    svg("title", {}, label),
    svg("circle", { class: "target", cx, cy, r: 9 }),
    svg("circle", { cx, cy, r: isHere ? 5 : 3, fill: colour }),
  );
}

function stopMark(rounds, across) {
  if (rounds.settled >= rounds.last) return null;
  const at = x(across(rounds.pairs[rounds.settled]));
  const isLeft = at < WIDTH / 2;
  return svg(
    "g",
    { class: "stop" },
    svg("line", { x1: at, x2: at, y1: TOP - 6, y2: HEIGHT - BOTTOM }),
    svg(
      "text",
      { x: isLeft ? at - 1 : at + 1, y: TOP - 12, class: isLeft ? "left" : "right" },
      "you could have stopped here",
    ),
  );
}

function advice({ rounds, answer }) {
  const [settled, reached] = [rounds.settled, rounds.reached];
  const sentences = [];
  if (settled < rounds.last) {
    const saved = rounds.pairs[rounds.last] - rounds.pairs[settled];
    sentences.push(
      `After ${counted(rounds.pairs[settled], "item")} the best ${answer.hits.length} didn't change any more: ` +
        `the last ${count(saved)} only made sure.`,
    );
  } else if (rounds.last > 0)
    sentences.push("The best changed up to the last round: more budget may find better ones.");
  if (reached >= 0 && reached < rounds.last)
    sentences.push(
      `A target recall of ${percent(TARGET)} would have stopped the search after ${count(rounds.pairs[reached])}.`,
    );
  return sentences.length > 0 && html("p", { class: "advice" }, sentences.join(" "));
}

function key({ truth, hasEstimate }) {
  const meaning = truth ? "share of the truly best" : "share of the final answer (this method gives no estimate)";
  return html(
    "p",
    { class: "legend" },
    hasEstimate && legendEntry("line", "estimated recall"),
    (truth || !hasEstimate) && legendEntry("steps", meaning),
  );
}

function spoken({ rounds, answer }, hasEstimate) {
  const end =
    hasEstimate && answer.estimated_recall !== null ? `, and ends at ${percent(answer.estimated_recall)}` : "";
  const stop =
    rounds.settled < rounds.last
      ? `; you could have stopped after ${counted(rounds.pairs[rounds.settled], "item")}`
      : "";
  return `Curve of estimated recall over ${rounds.last + 1} rounds${end}${stop}`;
}

function expectedLine(curve, across, colour) {
  const at = curve.points.map((each) => [x(across(each.budget)), y(each.recall)]);
  const dots = curve.points.map((each, place) =>
    svg(
      "circle",
      { cx: at[place][0], cy: at[place][1], r: 3, fill: colour },
      svg("title", {}, `top ${curve.k}, ${counted(each.budget, "item")}: ${percent(each.recall)}`),
    ),
  );
  return svg(
    "g",
    {},
    svg("polyline", { class: "expected", stroke: colour, points: at.map((each) => each.join(",")).join(" ") }),
    dots,
  );
}
