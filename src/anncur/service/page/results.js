// The items that were found: exact scores, readable texts, marked terms, and after a check their true ranks.

import { byId, fill, html } from "./dom.js";
import { roundColour } from "./scale.js";
import * as words from "./words.js";

const LONG = 260; // characters of a text that are shown at once

/** What the budget bought, in a few numbers. */
export function showSummary(view) {
  const { answer, nItems } = view;
  const facts = [
    [words.count(answer.calls), `of ${words.counted(nItems, "item")} scored`],
    answer.estimated_recall !== null && [words.percent(answer.estimated_recall), "estimated recall"],
    answer.is_unlike_anchors && ["unlike", "the anchor queries"],
    [words.count(answer.n_rounds), answer.n_rounds === 1 ? "round" : "rounds"],
    [words.duration(answer.seconds), "in all"],
  ];
  if (view.truth) facts.splice(2, 0, [words.percent(recall(view)), "true recall"]);
  fill(
    byId("summary"),
    facts.filter(Boolean).map(([value, label]) => html("p", {}, html("b", {}, value), ` ${label}`)),
  );
}

/** The share of the truly best that was found. */
export function recall({ answer, truth }) {
  const found = new Set(answer.hits.map((hit) => hit.id));
  return truth.hits.length ? truth.hits.filter((hit) => found.has(hit.id)).length / truth.hits.length : 1;
}

/** The list of hits. */
export function showHits(view) {
  const { hits } = view.answer;
  const wanted = words.terms(view.query.text);
  const ranks = new Map(view.truth?.hits.map((hit, place) => [hit.id, place + 1]));
  const list = hits.map((hit, place) => shownHit(hit, place, { view, wanted, ranks }));
  fill(byId("hits"), list.length ? list : html("li", { class: "none" }, "No items were found."));
}

function shownHit(hit, place, { view, wanted, ranks }) {
  const round = view.rounds.roundOf.get(hit.id);
  return html(
    "li",
    { class: "hit", "data-item": hit.id },
    html("span", { class: "rank", "aria-hidden": "true" }, String(place + 1)),
    html(
      "div",
      { class: "said" },
      html("h3", {}, marked(hit.title || hit.id, wanted)),
      hit.text && text(hit.text, wanted),
      notes(hit, round, ranks, view),
    ),
    html("span", { class: "score", title: "exact score" }, hit.score === null ? "unscored" : words.score(hit.score)),
  );
}

function notes(hit, round, ranks, { rounds, truth }) {
  const found = [
    hit.title && hit.title !== hit.id && html("span", { class: "id" }, hit.id),
    round !== undefined &&
      rounds.last > 0 &&
      html("span", {}, dot(roundColour(round, rounds.last + 1)), `round ${round + 1}`),
    truth && html("span", {}, ranks.has(hit.id) ? `truly number ${ranks.get(hit.id)}` : "not among the truly best"),
  ];
  return found.some(Boolean) && html("p", { class: "notes" }, found);
}

export const dot = (colour) => html("i", { class: "dot", "aria-hidden": "true", place: { background: colour } });

/** A text, its end behind a button if it is long. */
function text(whole, wanted) {
  const shown = html("p", { class: "text" }, marked(shortened(whole), wanted));
  if (whole.length <= LONG) return shown;
  const button = html("button", { type: "button", class: "link", "aria-expanded": "false" }, "more");
  button.addEventListener("click", () => {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    fill(shown, marked(isOpen ? shortened(whole) : whole, wanted), " ", button);
    button.setAttribute("aria-expanded", String(!isOpen));
    button.textContent = isOpen ? "more" : "less";
    button.focus();
  });
  shown.append(" ", button);
  return shown;
}

function shortened(whole) {
  if (whole.length <= LONG) return whole;
  const cut = whole.lastIndexOf(" ", LONG);
  return `${whole.slice(0, cut > LONG / 2 ? cut : LONG)}…`;
}

const marked = (whole, wanted) =>
  words.pieces(whole, wanted).map((piece) => (piece.isTerm ? html("mark", {}, piece.text) : piece.text));
