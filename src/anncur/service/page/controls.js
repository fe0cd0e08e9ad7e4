// The search box and its sliders: what a person asks for.

import { byId, fill, html } from "./dom.js";
import { count, counted, METHODS, parseMarked, percent } from "./words.js";

const KS = [1, 2, 3, 5, 10, 15, 20, 30, 50, 100];
const BUDGETS = [5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10000];
const [DEFAULT_K, DEFAULT_BUDGET] = [10, 100];

/** A slider over values that aren't evenly spaced. */
class Slider {
  constructor(id, noun) {
    this.input = byId(id);
    this.output = byId(`${id}-value`);
    this.noun = noun;
    this.stops = [];
    this.input.addEventListener("input", () => this.describe());
  }

  /** Offer these values, and choose one of them or the nearest below. */
  offer(values, chosen) {
    this.stops = values;
    this.input.max = values.length - 1;
    this.value = chosen;
  }

  get value() {
    return this.stops[Number(this.input.value)];
  }

  set value(wanted) {
    const most = this.stops.at(-1);
    const value = Math.max(this.stops[0], Math.min(most, wanted));
    if (!this.stops.includes(value)) this.stops = [...this.stops, value].sort((a, b) => a - b);
    this.input.max = this.stops.length - 1;
    this.input.value = this.stops.indexOf(value);
    this.describe();
  }

  describe() {
    this.output.textContent = counted(this.value, this.noun);
    this.input.setAttribute("aria-valuetext", counted(this.value, this.noun));
  }
}

export class Controls {
  constructor({ onIndex }) {
    this.k = new Slider("k", "item");
    this.budget = new Slider("budget", "pair");
    this.query = byId("query");
    this.marked = byId("marked");
    this.facts = null;
    for (const slider of [this.k, this.budget]) slider.input.addEventListener("input", () => this.promise());
    byId("method").addEventListener("change", () => this.promise());
    byId("index").addEventListener("change", () => onIndex(byId("index").value));
  }

  /** Offer what an index and its service allow. */
  offer(facts, indexes, caps) {
    this.facts = facts;
    const most = Math.max(1, Math.min(caps.budget, facts.n_items));
    this.k.offer(upTo(KS, Math.max(1, Math.min(caps.k, facts.n_items, KS.at(-1)))), this.k.value ?? DEFAULT_K);
    this.budget.offer(upTo(BUDGETS, most), this.budget.value ?? DEFAULT_BUDGET);
    const kept = byId("method").value;
    const methods = facts.methods.filter((method) => method !== "exhaustive");
    fill(
      byId("method"),
      methods.map((method) => option(method, kept)),
    );
    fill(
      byId("index"),
      indexes.map((index) => html("option", { selected: index.name === facts.name }, index.name)),
    );
    byId("index-choice").hidden = indexes.length < 2;
    byId("controls").hidden = false;
    this.promise();
  }

  /** Show what a link asks for. */
  set({ query, k, budget, method, marked }) {
    if (query !== undefined) this.query.value = query;
    if (marked !== undefined) this.marked.checked = marked;
    if (k) this.k.value = k;
    if (budget) this.budget.value = budget;
    if (method && this.facts.methods.includes(method) && method !== "exhaustive") byId("method").value = method;
    this.promise();
  }

  /** What is wrong with the query as it is typed, or null. */
  get mistake() {
    if (!this.query.value.trim()) return "Type what you are looking for.";
    if (this.marked.checked && !parseMarked(this.query.value.trim()))
      return "Put exactly one mention in [brackets], or untick the box below the query.";
    return null;
  }

  /** What to ask the service for, as its JSON has it. */
  get wanted() {
    const typed = this.query.value.trim();
    const { text, mention } = this.marked.checked ? parseMarked(typed) : { text: typed, mention: null };
    const body = { query: text, index: this.facts.name, k: this.k.value, budget: this.budget.value };
    return { ...body, method: byId("method").value, ...(mention && { mention }) };
  }

  /** The same for the address, with the query as it was typed. */
  get link() {
    const { index, k, budget, method } = this.wanted;
    return { query: this.query.value.trim(), k, budget, method, index, marked: this.marked.checked };
  }

  promise() {
    byId("expected").textContent = expected(this.facts, this.k.value, this.budget.value, byId("method").value);
  }
}

function expected(facts, k, budget, method) {
  const most = Math.min(budget, facts.n_items);
  const part = percent(most / Math.max(1, facts.n_items));
  const scored = `Scores at most ${counted(most, "item")}, ${part} of ${count(facts.n_items)}. `;
  const curve = facts.expected_recall.find((each) => each.k === k);
  if (method !== "posterior" || !curve)
    return scored + METHODS[method][0].toUpperCase() + METHODS[method].slice(1) + ".";
  return `${scored}Expected recall of the top ${k}: ${percent(between(curve.points, budget))}.`;
}

/** On the line between the points around a budget; budgets count by their logarithm. */
function between(points, budget) {
  const after = points.findIndex((point) => point.budget >= budget);
  if (after <= 0) return points.at(after).recall; // before the first point, or after the last one
  const [low, high] = [points[after - 1], points[after]];
  const part = Math.log(budget / low.budget) / Math.log(high.budget / low.budget);
  return low.recall + part * (high.recall - low.recall);
}

const upTo = (values, most) => [...values.filter((value) => value < most), most];
const option = (method, kept) => html("option", { value: method, selected: method === kept }, method);
