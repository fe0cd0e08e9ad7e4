// Two methods side by side on the same query and budget, with lines between the places of an item.

import { search } from "./api.js";
import { announce, byId, fill, html, legendEntry, svg } from "./dom.js";
import { clearNotice, showProblem } from "./notices.js";
import { recall } from "./results.js";
import { counted, labelOf, METHODS, percent, score } from "./words.js";

let running = null;

/** Offer other methods; `onCompared(method)` after one was compared. */
export function showComparison(view, onCompared) {
  running?.abort();
  const others = view.facts.methods.filter((method) => method !== view.answer.method && method !== "exhaustive");
  const usual = others.includes("rerank") ? "rerank" : others[0];
  const chosen = others.includes(view.compared) ? view.compared : usual;
  const select = html(
    "select",
    { id: "other" },
    others.map((method) => html("option", { value: method, selected: method === chosen }, method)),
  );
  const [output, notice] = [html("div", { id: "compared" }), html("div", { role: "alert" })];
  const compare = () => run(view, select.value, { output, notice, onCompared });
  const button = html("button", { type: "button", id: "compare", on: { click: compare } }, "Compare");
  fill(
    byId("comparison"),
    html("h2", { id: "comparison-title" }, "Another method, the same budget"),
    html("p", { class: "buttons" }, html("label", { for: "other" }, `${view.answer.method} and`), select, button),
    notice,
    output,
  );
  if (view.other) fill(output, drawn(view));
}

/** Draw the comparison again, as when the truth has become known. */
export function redrawComparison(view) {
  if (view.other) fill(byId("compared"), drawn(view));
}

async function run(view, method, { output, notice, onCompared }) {
  running?.abort();
  running = new AbortController();
  clearNotice(notice);
  fill(output, html("p", { class: "hint" }, "Searching…"));
  try {
    view.other = await search({ ...view.wanted, method }, running.signal);
    fill(output, drawn(view));
    announce(summary(view));
    onCompared(method);
  } catch (problem) {
    if (problem.name === "AbortError") return;
    fill(output);
    showProblem(problem, { again: () => run(view, method, { output, notice, onCompared }), place: notice });
  }
}

/** Start the comparison that a link asks for. */
export const compareNow = () => byId("compare").click();

function drawn(view) {
  const [left, right] = [view.answer, view.other];
  const [leftPlaces, rightPlaces] = [left, right].map(
    (answer) => new Map(answer.hits.map((hit, place) => [hit.id, place])),
  );
  const n = Math.max(left.hits.length, right.hits.length);
  const column = (answer, others) =>
    html(
      "ol",
      { class: "column" },
      answer.hits.map((hit, place) => entry(hit, place, others)),
    );
  return html(
    "div",
    {},
    html("p", { class: "advice" }, summary(view)),
    html(
      "div",
      { class: "slopes", place: { "--rows": n } },
      html("h3", {}, left.method),
      html("span"),
      html("h3", {}, right.method),
      column(left, rightPlaces),
      slopes(leftPlaces, rightPlaces, n),
      column(right, leftPlaces),
    ),
    html(
      "p",
      { class: "legend" },
      legendEntry("slope same", "same place"),
      legendEntry("slope moved", "other place"),
      legendEntry("slope alone", "only in one"),
    ),
    html("p", { class: "hint" }, `${right.method} ${METHODS[right.method]}.`),
  );
}

function entry(hit, place, others) {
  const there = others.get(hit.id);
  const kind = there === undefined ? "alone" : there === place ? "same" : "moved";
  const spoken =
    there === undefined ? "only here" : there === place ? "same place" : `number ${there + 1} in the other`;
  const label = labelOf(hit);
  return html(
    "li",
    { class: kind, "data-item": hit.id },
    html("b", {}, String(place + 1)),
    html("span", { class: "label", title: label }, label),
    html("span", { class: "value" }, score(hit.score)),
    html("span", { class: "unseen" }, spoken),
  );
}

function slopes(left, right, n) {
  const lines = [...left].flatMap(([id, place]) => {
    const there = right.get(id);
    if (there === undefined) return [];
    const [from, to] = [place + 0.5, there + 0.5];
    return [
      svg("path", {
        class: place === there ? "same" : "moved",
        "data-item": id,
        d: `M0 ${from}C50 ${from} 50 ${to} 100 ${to}`,
      }),
    ];
  });
  return svg("svg", { viewBox: `0 0 100 ${n}`, preserveAspectRatio: "none", "aria-hidden": "true" }, lines);
}

function summary(view) {
  const [left, right] = [view.answer, view.other];
  const there = new Set(right.hits.map((hit) => hit.id));
  const shared = left.hits.filter((hit) => there.has(hit.id)).length;
  const same = left.hits.filter((hit, place) => right.hits[place]?.id === hit.id).length;
  const sentences = [`${shared} of ${left.hits.length} are in both, ${same} in the same place.`];
  if (view.truth) {
    const other = recall({ answer: right, truth: view.truth });
    sentences.push(
      `Of the truly best, ${left.method} found ${percent(recall(view))} and ${right.method} ${percent(other)}.`,
    );
  } else sentences.push(better(left, right));
  if (left.calls !== right.calls) sentences.push(`They scored ${left.calls} and ${counted(right.calls, "item")}.`);
  return sentences.join(" ");
}

/** Exact scores can be compared without the truth: a higher sum is a better answer. */
function better(left, right) {
  const mean = (answer) => answer.hits.reduce((sum, hit) => sum + hit.score, 0) / (answer.hits.length || 1);
  return `Their mean exact scores are ${score(mean(left))} and ${score(mean(right))}.`;
}
