// Elements. Text only ever becomes text: nothing here, nor anywhere on this page, parses HTML from a value.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element. `on` are listeners, `place` are styles that depend on data, the rest are attributes. */
export function html(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Put children in the place of those that are there. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(isShown));
  return element;
}

/** What a mark of a figure means; `kind` is the mark's class. */
export function legendEntry(kind, text) {
  return html("span", {}, html("i", { class: `key ${kind}`, "aria-hidden": "true" }), text);
}

/** Say something to those who listen rather than look. */
export function announce(text) {
  byId("status").textContent = text;
}

function filled(element, attributes = {}, children = []) {
  const { on = {}, place = {}, ...plain } = attributes ?? {};
  for (const [name, value] of Object.entries(plain)) {
    if (value === true) element.setAttribute(name, "");
    else if (isShown(value)) element.setAttribute(name, value);
  }
  for (const [name, value] of Object.entries(place)) element.style.setProperty(name, value);
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  element.append(...children.flat(Infinity).filter(isShown));
  return element;
}

const isShown = (value) => value !== null && value !== undefined && value !== false;
