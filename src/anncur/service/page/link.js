// What is searched for, in the part of the address after "#", which browsers never send.

/** Query and options of the address; what isn't there is left out. */
export function readLink() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const wanted = { query: fields.get("q"), method: fields.get("method"), index: fields.get("index") };
  const numbers = { k: positive(fields.get("k")), budget: positive(fields.get("budget")) };
  const all = { ...wanted, ...numbers, marked: fields.has("marked"), compared: fields.get("compare") };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null));
}

/** Put them into the address, as a new step of the history unless they are there already. */
export function writeLink({ query, k, budget, method, index, marked, compared }) {
  const others = { ...(marked && { marked: "yes" }), ...(compared && { compare: compared }) };
  const fields = new URLSearchParams({ q: query, k, budget, method, index, ...others });
  const hash = `#${fields}`;
  if (hash !== location.hash) history.pushState(null, "", hash);
}

function positive(text) {
  const value = Number(text);
  return text && Number.isInteger(value) && value >= 1 ? value : null;
}
