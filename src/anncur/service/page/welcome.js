// Before the first search: what this is, and a few items to start from.

import { byId, fill, html } from "./dom.js";
import { counted } from "./words.js";

const N_IDEAS = 4;
const [SHORTEST, LONGEST] = [6, 24]; // characters of a name that makes a good query

/** Show it; `look(query)` searches for one of the items. */
export function showWelcome(facts, map, look) {
  const ideas = ideasOf(map?.items ?? []);
  const button = (name) => html("button", { type: "button", class: "idea", on: { click: () => look(name) } }, name);
  fill(
    byId("welcome"),
    html("h2", {}, "Exact scores are slow.", html("br"), "Buy only those that matter."),
    html("p", {}, explanation(facts)),
    ideas.length > 0 && html("p", { class: "buttons" }, "Start from an item: ", ideas.map(button)),
  );
  byId("welcome").hidden = false;
}

const explanation = ({ n_items: n }) =>
  `Give the scorer a budget: a few of ${counted(n, "item")} are scored, and you can watch how: ` +
  "what was guessed, what was scored, and when you could have stopped.";

/** Names of items from all over the index. */
function ideasOf(items) {
  const names = items.map((item) => item.label.split(",")[0]);
  const good = names.filter((name) => name.length >= SHORTEST && name.length <= LONGEST);
  const step = Math.max(1, Math.floor(good.length / N_IDEAS));
  return good.filter((_, place) => place % step === 0).slice(0, N_IDEAS);
}
