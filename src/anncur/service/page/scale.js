// From values to places and colours.

import { isDark } from "./theme.js";

// viridis, which people with any colour vision can read; each theme leaves out the end that its background would hide
const VIRIDIS = [
  "#440154",
  "#482878",
  "#3e4a89",
  "#31688e",
  "#26828e",
  "#1f9e89",
  "#35b779",
  "#6ece58",
  "#b5de2b",
  "#fde725",
];
const RANGES = { light: [0.05, 0.8], dark: [0.3, 1] };

/** A function from a value to its share of the way from `start` to `end`, within 0 and 1. */
export function share(start, end) {
  const width = end - start || 1;
  return (value) => Math.min(1, Math.max(0, (value - start) / width));
}

/** The least and the largest of some values, with a margin; null and undefined are left out. */
export function extent(values, margin = 0.04) {
  const numbers = values.filter((value) => Number.isFinite(value));
  const low = numbers.reduce((least, value) => Math.min(least, value), Infinity);
  const high = numbers.reduce((most, value) => Math.max(most, value), -Infinity);
  if (!numbers.length) return [0, 1];
  const around = margin * (high - low || Math.abs(high) || 1);
  return [low - around, high + around];
}

/** The colour of a round, counted from 0. */
export function roundColour(round, nRounds) {
  const [start, end] = RANGES[isDark() ? "dark" : "light"];
  const at = (start + (end - start) * (nRounds > 1 ? round / (nRounds - 1) : 0.5)) * (VIRIDIS.length - 1);
  const left = Math.min(VIRIDIS.length - 2, Math.floor(at));
  return mixed(VIRIDIS[left], VIRIDIS[left + 1], at - left);
}

function mixed(first, second, part) {
  const channel = (colour, place) => Number.parseInt(colour.slice(1 + 2 * place, 3 + 2 * place), 16);
  const values = [0, 1, 2].map((place) =>
    Math.round((1 - part) * channel(first, place) + part * channel(second, place)),
  );
  return `rgb(${values.join(" ")})`;
}
