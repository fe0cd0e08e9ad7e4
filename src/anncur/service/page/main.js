// The page: reads the address, asks the service, and lets each part show its share of the answer.

import { fetchIndexes, fetchMap, search } from "./api.js";
import { showCheck } from "./check.js";
import { compareNow, redrawComparison, showComparison } from "./comparison.js";
import { Controls } from "./controls.js";
import { announce, byId } from "./dom.js";
import { showFacts } from "./facts.js";
import { readLink, writeLink } from "./link.js";
import { clearNotice, showNotice, showProblem } from "./notices.js";
import { showHits, showSummary } from "./results.js";
import { Rounds } from "./rounds.js";
import { showStory, stepRounds } from "./story.js";
import { onThemeChange, startTheme } from "./theme.js";
import { showWelcome } from "./welcome.js";
import { counted } from "./words.js";

const MOST_MAPPED = 2000;

const page = { indexes: [], caps: null, maps: new Map(), view: null, running: null };
const controls = new Controls({ onIndex: useIndex });

start();

function start() {
  controls.query.value = readLink().query ?? "";
  startTheme(byId("theme"));
  onThemeChange(redraw);
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    runSearch();
  });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address holds the query
    (byId("answer").hidden ? controls.query : byId("results")).focus();
  });
  addEventListener("popstate", followLink);
  addEventListener("keydown", onKey);
  for (const kind of ["pointerover", "focusin"]) addEventListener(kind, lightUp);
  open();
}

/** Learn which indexes there are, and then do what the address asks for. */
async function open() {
  try {
    const found = await fetchIndexes();
    Object.assign(page, { indexes: found.indexes, caps: found.caps });
    followLink();
  } catch (problem) {
    showProblem(problem, { again: open });
  }
}

function followLink() {
  if (!page.indexes.length) return;
  const link = readLink();
  useIndex(link.index);
  controls.set({ query: "", ...link });
  if (link.query) runSearch({ compared: controls.facts.methods.includes(link.compared) ? link.compared : null });
  else showStart();
}

function useIndex(name) {
  const facts = page.indexes.find((index) => index.name === name) ?? page.indexes[0];
  controls.offer(facts, page.indexes, page.caps);
  showFacts(facts);
}

async function runSearch({ compared = null, options = {} } = {}) {
  if (!page.indexes.length) {
    open(); // it failed before, or still goes on
    return;
  }
  page.running?.abort();
  if (controls.mistake) {
    showNotice(controls.mistake);
    controls.query.focus();
    return;
  }
  const wanted = controls.wanted;
  const own = (page.running = new AbortController());
  clearNotice();
  byId("search").classList.add("busy");
  announce("Searching…");
  writeLink({ ...controls.link, compared });
  try {
    const [answer] = await Promise.all([search({ ...wanted, ...options }, own.signal), mapOf(wanted.index)]);
    if (answer.index_version !== controls.facts.version) await refreshFacts(wanted.index);
    const map = await mapOf(wanted.index, answer.index_version);
    if (page.running !== own) return; // another search has begun
    page.view = viewOf(answer, map, wanted, compared);
    showAnswer();
    if (compared) compareNow();
  } catch (problem) {
    if (problem.name === "AbortError") return;
    announce("");
    showProblem(problem, {
      again: () => runSearch({ compared, options }),
      guess: () => runSearch({ options: { fail_open: true } }),
    });
  } finally {
    if (page.running === own) byId("search").classList.remove("busy");
  }
}

/** The index has changed since the page was opened. */
async function refreshFacts(name) {
  page.indexes = (await fetchIndexes()).indexes;
  useIndex(name);
}

/** Items on the map, fetched again for another version; a page without its map still works. */
async function mapOf(name, version = null) {
  const kept = await page.maps.get(name);
  if (kept && (version === null || kept.index_version === version)) return kept;
  page.maps.set(
    name,
    fetchMap(name, MOST_MAPPED).catch(() => null),
  );
  return page.maps.get(name);
}

function viewOf(answer, map, wanted, compared) {
  const facts = controls.facts;
  const isSameVersion = map?.index_version === answer.index_version;
  const sign = facts.higher_is_better ? 1 : -1;
  const rounds = new Rounds(answer, wanted.k, sign);
  const query = { text: wanted.query, mention: wanted.mention };
  return {
    answer,
    wanted,
    query,
    facts,
    rounds,
    sign,
    compared,
    nItems: facts.n_items,
    map: isSameVersion ? map : null,
    truth: null,
    other: null,
    round: null,
  };
}

function showAnswer() {
  const { view } = page;
  document.title = `${view.query.text} · anncur`;
  byId("welcome").hidden = true;
  byId("answer").hidden = false;
  redraw();
  showComparison(view, (method) => writeLink({ ...linkOf(view), compared: method }));
  showCheck(view, redraw);
  if (!view.answer.is_scored) showNotice("The scorer doesn't answer. These are first guesses, without scores.");
  else if (view.answer.is_partial) showNotice("The search ended early. This is the best that it had found.");
  announce(`${counted(view.answer.hits.length, "result")}, ${counted(view.answer.calls, "item")} scored.`);
}

/** Draw everything again: the truth has become known, or colours have changed. */
function redraw() {
  const { view } = page;
  if (page.indexes.length) showFacts(controls.facts);
  if (!view) return;
  byId("comparison").hidden = byId("check").hidden = !view.answer.is_scored;
  showSummary(view);
  showHits(view);
  showStory(view);
  redrawComparison(view);
}

const linkOf = (view) => ({
  ...controls.link,
  k: view.wanted.k,
  budget: view.wanted.budget,
  method: view.wanted.method,
});

async function showStart() {
  page.view = null;
  document.title = "anncur";
  byId("answer").hidden = true;
  showWelcome(controls.facts, await mapOf(controls.facts.name), (query) => {
    controls.set({ query, marked: false });
    runSearch();
  });
}

/** "/" goes to the search box, arrows through the rounds, unless what has the focus has its own use for them. */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("select, input:not([type=range])"))
    return;
  if (event.key === "/") {
    event.preventDefault();
    controls.query.focus();
    controls.query.select();
  }
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step && !event.target.closest?.("input")) stepRounds(step);
}

/** Show the same item in all figures. */
function lightUp(event) {
  const id = event.target.closest?.("[data-item]")?.dataset.item;
  for (const element of document.querySelectorAll(".lit")) element.classList.remove("lit");
  if (id === undefined) return;
  for (const element of document.querySelectorAll(`[data-item="${CSS.escape(id)}"]`)) element.classList.add("lit");
}
