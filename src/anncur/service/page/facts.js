// What an index is made of, and the recall that it promises.

import { drawExpected } from "./curve.js";
import { byId, fill, html } from "./dom.js";
import { dot } from "./results.js";
import { roundColour } from "./scale.js";
import { count } from "./words.js";

export function showFacts(facts) {
  const pairs = [
    ["Items", count(facts.n_items)],
    ["Anchor queries", count(facts.n_anchor_queries)],
    ["Retrievers", facts.retrievers.join(", ") || "none"],
    ["Vectors", facts.vectors],
    ["Scorer", facts.scorer],
    ["Better scores are", facts.higher_is_better ? "higher" : "lower"],
    ["Version", count(facts.version)],
  ];
  const list = html(
    "dl",
    {},
    pairs.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))),
  );
  fill(
    byId("facts"),
    html("h2", { id: "facts-title" }, `The index “${facts.name}”`),
    html("div", { class: "facts" }, list, expected(facts)),
  );
  byId("facts").hidden = false;
}

function expected({ expected_recall: curves }) {
  const caption = html("figcaption", {}, "Recall to expect");
  if (!curves.length)
    return html(
      "figure",
      {},
      caption,
      html("p", { class: "hint" }, "Unknown: this index was neither tuned nor calibrated."),
    );
  const names = curves.map((curve, place) =>
    html("span", {}, dot(roundColour(place, curves.length)), `top ${curve.k}`),
  );
  const source = html("span", { class: "wide" }, "measured on queries that the index has not seen");
  return html("figure", {}, caption, drawExpected(curves), html("p", { class: "legend" }, names, source));
}
