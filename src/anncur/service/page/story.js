// The search as a story: a scrubber over its rounds, which the bars, the map and the curve follow.

import { showBars } from "./bars.js";
import { drawCurve } from "./curve.js";
import { byId, fill, html } from "./dom.js";
import { ItemMap } from "./map.js";
import { roundColour } from "./scale.js";
import { count, counted } from "./words.js";

const LONGEST_PLAY = 12000; // milliseconds
const [QUICKEST_STEP, SLOWEST_STEP] = [120, 900];

let playing = null;
let stepping = null;

/** Go some rounds on or back, as far as there are any. */
export function stepRounds(n) {
  stepping?.(n);
}

/** Show the rounds of a view, at the round where it stands. */
export function showStory(view) {
  stop();
  stepping = null;
  const { rounds } = view;
  if (rounds.last < 0) {
    fill(byId("story"), title(), html("p", {}, "Nothing was scored, and so there are no rounds to show."));
    return;
  }
  view.round = Math.min(view.round ?? rounds.last, rounds.last);
  const parts = build(view);
  fill(byId("story"), title(), parts.controls, parts.figures, parts.bars);
  parts.update();
}

const title = () => html("h2", { id: "story-title" }, "The search, round by round");

function build(view) {
  const { rounds } = view;
  const map = new ItemMap(view);
  const [caption, curve, bars] = [html("p", { class: "caption", "aria-live": "off" }), html("div"), html("div")];
  const slider = html("input", {
    id: "scrubber",
    type: "range",
    min: 1,
    max: rounds.last + 1,
    step: 1,
    "aria-label": "Round",
  });
  const go = (round) => {
    view.round = round;
    update();
  };
  const colours = strip(rounds);
  const update = () => {
    [...colours.children].forEach((piece, place) => piece.classList.toggle("later", place > view.round));
    slider.value = view.round + 1;
    slider.setAttribute("aria-valuetext", spoken(view));
    fill(caption, written(view));
    map.show(view.round);
    fill(curve, drawCurve(view, choose));
    showBars(bars, view);
  };
  const choose = (round) => {
    stop();
    go(Math.max(0, Math.min(rounds.last, round)));
  };
  slider.addEventListener("input", () => choose(Number(slider.value) - 1));
  stepping = (n) => choose(view.round + n);
  const controls = html(
    "div",
    { class: "scrubber" },
    playButton(view, go),
    html("div", { class: "track" }, slider, colours),
    caption,
  );
  return { controls, figures: html("div", { class: "figures" }, map.figure, curve), bars, update };
}

function playButton(view, go) {
  const button = html("button", {
    type: "button",
    class: "play",
    id: "play",
    "aria-label": "Play",
    disabled: view.rounds.last < 1,
  });
  button.addEventListener("click", () => (playing ? stop() : play(view, go, button)));
  return button;
}

function play(view, go, button) {
  const { last } = view.rounds;
  const pause = Math.max(QUICKEST_STEP, Math.min(SLOWEST_STEP, LONGEST_PLAY / (last + 1)));
  go(view.round === last ? 0 : view.round);
  const timer = setInterval(() => (view.round < last ? go(view.round + 1) : stop()), pause);
  playing = { timer, button };
  button.setAttribute("aria-label", "Pause");
  button.classList.add("playing");
}

function stop() {
  if (!playing) return;
  clearInterval(playing.timer);
  playing.button.setAttribute("aria-label", "Play");
  playing.button.classList.remove("playing");
  playing = null;
}

/** Rounds as a strip of their colours, below the scrubber. */
function strip(rounds) {
  const pieces = rounds.all.map((_, place) =>
    html("i", { place: { background: roundColour(place, rounds.last + 1) } }),
  );
  return html("div", { class: "strip", "aria-hidden": "true" }, pieces);
}

const spoken = ({ rounds, round }) =>
  `after round ${round + 1} of ${rounds.last + 1}, ${counted(rounds.pairs[round], "item")} scored`;

function written({ rounds, round }) {
  const { items, is_exploring: isExploring } = rounds.all[round];
  const scored = `${counted(items.length, "item")}${isExploring ? ", drawn at random for the query log" : ""}`;
  return [
    html("b", {}, `Round ${round + 1} of ${rounds.last + 1}`),
    html("span", {}, ` scored ${scored}; ${count(rounds.pairs[round])} in all`),
  ];
}
