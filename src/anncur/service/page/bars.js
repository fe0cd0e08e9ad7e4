// A bar for each item: the prior guess, the posterior with its spread, and the exact score, on one scale.

import { fill, html } from "./dom.js";
import { extent, roundColour, share } from "./scale.js";
import { score } from "./words.js";

const [MOST_BEST, MOST_OTHERS] = [20, 8]; // rows
const WIDE = 1.96; // standard deviations on each side: 95 % of a normal distribution

/** The best items after the round of a view, and what else the round scored. */
export function showBars(element, view) {
  const { rounds, round } = view;
  const best = rounds.best[round].slice(0, MOST_BEST);
  const ids = new Set(rounds.best[round].map((item) => item.id));
  const others = rounds.all[round].items.filter((item) => !ids.has(item.id)).sort((a, b) => b.score - a.score);
  const place = placing(view);
  const row = (item) => shownRow(item, { place, rounds, round });
  const knows = rounds.all.some((each) => each.items.some((item) => item.posterior_mean !== null));
  fill(
    element,
    html("h3", {}, `The best ${best.length} after round ${round + 1}`),
    legend(knows),
    html("ol", { class: "bars" }, best.map(row)),
    others.length > 0 && html("h3", {}, "Also scored in this round"),
    others.length > 0 && html("ul", { class: "bars" }, others.slice(0, MOST_OTHERS).map(row)),
    others.length > MOST_OTHERS && html("p", { class: "hint" }, `and ${others.length - MOST_OTHERS} more`),
  );
}

/** One scale for all rounds, so that bars can be compared while they change. */
function placing({ rounds }) {
  const shown = rounds.all.flatMap((round, place) => [...rounds.best[place], ...round.items.slice(0, MOST_OTHERS)]);
  const values = shown.flatMap((item) => [item.score, item.prior_mean, item.posterior_mean]);
  return share(...extent(values));
}

function shownRow(item, { place, rounds, round }) {
  const at = (value) => `${(100 * place(value)).toFixed(2)}%`;
  const ownRound = rounds.roundOf.get(item.id);
  const colour = roundColour(ownRound, rounds.last + 1);
  const [low, high] = [item.posterior_mean - WIDE * item.spread, item.posterior_mean + WIDE * item.spread];
  const isKnown = item.posterior_mean !== null;
  const isSpread = isKnown && item.spread !== null;
  const track = html(
    "span",
    { class: "bar", "aria-hidden": "true" },
    html("i", { class: "exact", place: { width: at(item.score), background: colour } }),
    isSpread && html("i", { class: "spread", place: { left: at(low), width: `${100 * (place(high) - place(low))}%` } }),
    isKnown && html("i", { class: "posterior", place: { left: at(item.posterior_mean) } }),
    item.prior_mean !== null && html("i", { class: "prior", place: { left: at(item.prior_mean) } }),
    html("i", { class: "end", place: { left: at(item.score), background: colour } }),
  );
  const isNew = ownRound === round;
  return html(
    "li",
    { "data-item": item.id, class: isNew ? "new" : null },
    html("span", { class: "label", title: item.label }, item.label),
    track,
    html("span", { class: "value" }, score(item.score)),
    html("span", { class: "unseen" }, spoken(item, ownRound)),
  );
}

function spoken(item, round) {
  const parts = [`exact score, found in round ${round + 1}`];
  if (item.prior_mean !== null) parts.push(`prior ${score(item.prior_mean)}`);
  if (item.posterior_mean !== null) parts.push(`posterior ${score(item.posterior_mean)}`);
  if (item.spread !== null) parts.push(`plus or minus ${score(WIDE * item.spread)}`);
  return parts.join(", ");
}

function legend(knows) {
  const entry = (kind, text) => html("span", {}, html("i", { class: `key ${kind}`, "aria-hidden": "true" }), text);
  return html(
    "p",
    { class: "legend" },
    knows && entry("prior", "prior guess"),
    knows && entry("posterior", "posterior, with 95 % of its spread"),
    entry("end", "exact score, in the colour of its round"),
    entry("fresh", "new in this round"),
  );
}
