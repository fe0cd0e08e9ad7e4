// Check exhaustively: score everything, and show what the search has missed.

import { scoreEverything } from "./api.js";
import { announce, byId, fill, html } from "./dom.js";
import { clearNotice, showProblem } from "./notices.js";
import { recall } from "./results.js";
import { count, counted, duration, labelOf, percent, score } from "./words.js";

let running = null;

/** Offer the check; `onTruth()` when the truth of the view is known. */
export function showCheck(view, onTruth) {
  running?.abort();
  const [notice, output] = [html("div", { role: "alert" }), html("div", { id: "checked" })];
  fill(byId("check"), html("h2", { id: "check-title" }, "Was anything missed?"), notice, output);
  if (!view.facts.can_check_exhaustively) {
    fill(output, html("p", {}, `This index is too large to score all of it here: ${counted(view.nItems, "item")}.`));
  } else if (view.truth) fill(output, verdict(view));
  else fill(output, offer(view, { notice, output, onTruth }));
}

function offer(view, parts) {
  const start = html(
    "button",
    { type: "button", id: "check-all", on: { click: () => run(view, parts) } },
    "Check exhaustively",
  );
  return [
    html("p", {}, `Scores all ${counted(view.nItems, "item")}, ${ratio(view)} as many as the search, and compares.`),
    html("p", { class: "buttons" }, start),
  ];
}

const ratio = ({ nItems, answer }) => `${count(Math.max(1, Math.round(nItems / Math.max(1, answer.calls))))} times`;

async function run(view, parts) {
  const { notice, output, onTruth } = parts;
  running = new AbortController();
  const own = running;
  clearNotice(notice);
  const bar = html("progress", { id: "check-progress", max: view.nItems, value: 0, "aria-label": "Items scored" });
  const caption = html("p", { class: "hint" }, "Starting…");
  const cancel = html("button", { type: "button", id: "cancel", on: { click: () => own.abort() } }, "Cancel");
  fill(output, bar, caption, html("p", { class: "buttons" }, cancel));
  cancel.focus();
  const onProgress = (scored, total) => {
    Object.assign(bar, { max: total, value: scored });
    caption.textContent = `${count(scored)} of ${counted(total, "item")}`;
  };
  try {
    const { query, mention, index, k } = view.wanted;
    view.truth = await scoreEverything(
      { query, index, k, ...(mention && { mention }) },
      { signal: own.signal, onProgress },
    );
    fill(output, verdict(view));
    output.firstChild.focus(); // the button that had it is gone
    onTruth();
  } catch (problem) {
    if (running !== own) return; // another search has begun
    fill(output, offer(view, parts));
    byId("check-all").focus();
    if (problem.name === "AbortError") announce("The check was cancelled.");
    else showProblem(problem, { again: () => run(view, parts), place: notice });
  }
}

function verdict(view) {
  const { answer, truth } = view;
  const found = new Set(answer.hits.map((hit) => hit.id));
  const missed = truth.hits.map((hit, place) => ({ hit, place })).filter(({ hit }) => !found.has(hit.id));
  const n = truth.hits.length;
  const part = `with ${percent(answer.calls / truth.calls)} of the pairs`;
  const headline = missed.length
    ? `Found ${n - missed.length} of the truly best ${n}, ${part}.`
    : `Nothing was missed: all of the truly best ${n}, ${part}.`;
  return [
    html("p", { class: "verdict", tabindex: "-1" }, headline),
    meter(truth, found),
    missed.length > 0 && html("h3", {}, "Missed"),
    missed.length > 0 &&
      html(
        "ul",
        { class: "missed" },
        missed.map(({ hit, place }) => missedItem(hit, place, view)),
      ),
    html("p", { class: "hint" }, cost(view)),
  ];
}

function cost(view) {
  const { answer, truth } = view;
  const [all, few] = [duration(truth.seconds), duration(answer.seconds)];
  const times = `Scored ${counted(truth.calls, "item")} in ${all}; the search took ${few}.`;
  const estimated = answer.estimated_recall === null ? "" : `Estimated recall: ${percent(answer.estimated_recall)}. `;
  return `${times} ${estimated}True recall: ${percent(recall(view))}.`;
}

/** The truly best as a row of marks, the missed ones empty. */
function meter(truth, found) {
  const marks = truth.hits.map((hit) =>
    html("i", { class: found.has(hit.id) ? "found" : "lost", "data-item": hit.id }),
  );
  return html("p", { class: "marks", "aria-hidden": "true" }, marks);
}

function missedItem(hit, place, { answer, sign }) {
  const last = answer.hits.at(-1);
  const lead = last ? `, ${score(sign * (hit.score - last.score))} better than the last result` : "";
  return html(
    "li",
    { "data-item": hit.id },
    html("b", {}, `number ${place + 1}`),
    " ",
    html("span", {}, labelOf(hit)),
    html("span", { class: "hint" }, ` ${score(hit.score)}${lead}; never scored by the search`),
  );
}
