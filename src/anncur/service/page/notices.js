// What went wrong, in plain words, with what a person can do about it.

import { setToken } from "./api.js";
import { byId, fill, html } from "./dom.js";

const PLAIN = {
  "too-busy": ["The service is busy.", "All places are taken just now."],
  "scorer-failed": ["The scorer doesn't answer.", "Exact scores can't be had until it is back."],
  "shutting-down": ["The service is shutting down.", "Try again when it is back."],
};

let countdown = null;

/** Say that something failed. `again` does it once more; `guess` answers without the scorer. */
export function showProblem(problem, { again, guess, place = byId("notice") }) {
  clearNotice(place);
  if (problem.kind === "unauthorized") {
    fill(place, tokenForm(again));
    return;
  }
  const [title, detail] = PLAIN[problem.kind] ?? [problem.title, problem.detail];
  const buttons = [
    again && againButton(again, problem.retrySeconds),
    problem.kind === "scorer-failed" && guess && button("Show first guesses instead", guess),
  ];
  const id = problem.requestId && html("p", { class: "hint" }, `Request ${problem.requestId}`);
  fill(place, box(html("p", {}, html("b", {}, title), " ", detail), html("p", { class: "buttons" }, buttons), id));
}

/** Say something that isn't an error of the service. */
export function showNotice(text, place = byId("notice")) {
  clearNotice(place);
  fill(place, box(html("p", {}, text)));
}

export function clearNotice(place = byId("notice")) {
  clearInterval(countdown);
  fill(place);
}

const box = (...children) => html("div", { class: "notice" }, children);
const button = (text, action) => html("button", { type: "button", on: { click: action } }, text);

/** A button that waits as long as the service asks. */
function againButton(again, seconds) {
  const found = button("Try again", again);
  let left = Math.ceil(seconds ?? 0);
  const tick = () => {
    found.disabled = left > 0;
    found.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left-- <= 0) clearInterval(countdown);
  };
  tick();
  if (found.disabled) countdown = setInterval(tick, 1000);
  return found;
}

function tokenForm(again) {
  const input = html("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const form = html(
    "form",
    { class: "notice", id: "token-form" },
    html("p", {}, html("b", {}, "This service needs a token."), " It is kept in this tab only, until you close it."),
    html(
      "p",
      { class: "buttons" },
      html("label", { for: "token" }, "Token"),
      input,
      html("button", { type: "submit" }, "Continue"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    setToken(input.value.trim());
    clearNotice();
    again();
  });
  return form;
}
