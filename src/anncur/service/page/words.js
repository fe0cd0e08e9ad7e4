// Numbers, methods and terms as people read them.

const WHOLE = new Intl.NumberFormat("en");

export const METHODS = {
  posterior: "scores what may belong to the best, round by round",
  anncur: "scores anchor items, fits a linear model, re-ranks once",
  adacur: "fits the linear model again after each round",
  axn: "fits an embedding of the query after each round",
  rerank: "scores what a retriever finds",
  exhaustive: "scores everything",
};

const COMMON = new Set(
  "a an and are as at be but by for from has have he her his in is it its not of on or she so than that the their them"
    .concat(" then there these they this to was were what when where which who will with you your")
    .split(" "),
);
const WORD = /[\p{L}\p{M}\p{N}]+/gu;

/** 1234 as "1,234". */
export const count = (number) => WHOLE.format(number);

/** A count and its noun: "1 round", "2 rounds". */
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** 0.912 as "91%"; never "100%" for less. */
export function percent(share) {
  const rounded = share < 1 ? Math.min(99, Math.round(100 * share)) : 100;
  return share > 0 && rounded === 0 ? "< 1%" : `${rounded}%`;
}

/** A score with as many digits as tell scores of this size apart. */
export function score(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3);
}

export const duration = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`);

/** A few words for an item. */
export const labelOf = (hit) => hit.title || hit.text.slice(0, 80) || hit.id;

/** The text of a query in which exactly one "[…]" marks the mention, and its span; null if there isn't exactly one.
 * "\\[" is a plain bracket, as for `Query.marked`. */
export function parseMarked(typed) {
  const starts = Array.from(typed.matchAll(/(?<!\\)\[/gu), (match) => match.index);
  const end = typed.indexOf("]", starts[0]);
  if (starts.length !== 1 || end < 0) return null;
  const parts = [typed.slice(0, starts[0]), typed.slice(starts[0] + 1, end), typed.slice(end + 1)];
  const [before, mention, after] = parts.map((part) => part.replaceAll("\\[", "["));
  const start = [...before].length; // positions count characters, as Python does
  return mention.trim() ? { text: before + mention + after, mention: [start, start + [...mention].length] } : null;
}

/** The words of a query that are worth marking, folded. */
export function terms(text) {
  const all = (text.match(WORD) ?? []).map((word) => [word, folded(word)]);
  return new Set(all.filter(([word]) => !COMMON.has(word.toLowerCase())).map(([, fold]) => fold));
}

/** A text as pieces: `[{text, isTerm}]`. */
export function pieces(text, wanted) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(WORD)) {
    if (!wanted.has(folded(match[0]))) continue;
    if (match.index > end) found.push({ text: text.slice(end, match.index), isTerm: false });
    end = match.index + match[0].length;
    found.push({ text: match[0], isTerm: true });
  }
  if (end < text.length) found.push({ text: text.slice(end), isTerm: false });
  return found;
}

/** Without case, accents and a plural's s. */
function folded(word) {
  const plain = word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  return plain.length > 3 ? plain.replace(/(?<!s)s$/, "") : plain;
}
