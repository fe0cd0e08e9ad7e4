// A bar for each item: the prior guess, the posterior with its spread, and the exact score, on one scale.

import { fill, html, legendEntry } from "./dom.js";
import { extent, roundColour, share } from "./scale.js";
import { score } from "./words.js";

const [MOST_BEST, MOST_OTHERS] = [20, 8]; // rows

/** The best items after the round of a view, and what else the round scored. */
export function showBars(element, view) {
  const { rounds, round } = view;
  const best = rounds.best[round].slice(0, MOST_BEST);
  const ids = new Set(rounds.best[round].map((item) => item.id));
  const others = rounds.all[round].items.filter((item) => !ids.has(item.id)).sort(rounds.byScore);
  const [left, right] = scaleOf(view);
  const row = (item) => shownRow(item, { place: share(left, right), rounds, round });
  const knows = rounds.all.some((each) => each.items.some((item) => item.posterior_mean !== null));
  fill(
    element,
    html("h3", {}, `The best ${best.length} after round ${round + 1}`),
    legend(knows),
    html("ol", { class: "bars" }, best.map(row), axis(left, right)),
    others.length > 0 && html("h3", {}, "Also scored in this round"),
    others.length > 0 && html("ul", { class: "bars" }, others.slice(0, MOST_OTHERS).map(row)),
    others.length > MOST_OTHERS && html("p", { class: "hint" }, `and ${others.length - MOST_OTHERS} more`),
  );
}

/** One scale for all rounds, so that bars can be compared while they change; better is on the right. */
function scaleOf({ rounds, sign }) {
  const n = rounds.best[rounds.last].length + MOST_OTHERS; // the most rows of one round
  const shown = rounds.all.flatMap((round) => [...round.items].sort(rounds.byScore).slice(0, n));
  const [low, high] = extent(shown.flatMap((item) => [item.score, item.prior_mean, ...around(item)]));
  return sign > 0 ? [low, high] : [high, low];
}

/** The posterior minus and plus its spread; no spread, no width. */
function around({ posterior_mean: mean, spread }) {
  return mean === null ? [null, null] : [mean - (spread ?? 0), mean + (spread ?? 0)];
}

const axis = (left, right) =>
  html(
    "li",
    { class: "axis", "aria-hidden": "true" },
    html("span"),
    html(
      "span",
      { class: "scale" },
      [left, (left + right) / 2, right].map((value) => html("span", {}, score(value))),
    ),
    html("span", { class: "value hint" }, "score"),
  );

function shownRow(item, { place, rounds, round }) {
  const at = (value) => `${(100 * place(value)).toFixed(2)}%`;
  const ownRound = rounds.roundOf.get(item.id);
  const colour = roundColour(ownRound, rounds.last + 1);
  const isKnown = item.posterior_mean !== null;
  const [left, right] = around(item)
    .map(place)
    .sort((a, b) => a - b);
  const track = html(
    "span",
    { class: "bar", "aria-hidden": "true" },
    html("i", { class: "exact", place: { width: at(item.score), background: colour } }),
    isKnown && html("i", { class: "spread", place: { left: `${100 * left}%`, width: `${100 * (right - left)}%` } }),
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
  if (item.spread !== null) parts.push(`plus or minus ${score(item.spread)}`);
  return parts.join(", ");
}

function legend(knows) {
  return html(
    "p",
    { class: "legend" },
    knows && legendEntry("prior", "prior guess"),
    knows && legendEntry("posterior", "posterior, plus and minus its standard deviation"),
    legendEntry("end", "exact score, in the colour of its round"),
    legendEntry("fresh", "new in this round"),
  );
}
