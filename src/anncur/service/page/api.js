// Requests to the service. Whatever goes wrong is a `Problem` that says what a person can do about it.

const TOKEN = "anncur-token";
const ROOT = new URL("..", import.meta.url); // the service may stand below another path
let token = storedToken();

export class Problem extends Error {
  /** `kind` is the last part of the problem's type, or "unreachable". */
  constructor(kind, { title, detail = "", retrySeconds = null, requestId = null }) {
    super(title);
    Object.assign(this, { kind, title, detail, retrySeconds, requestId });
  }
}

/** Keep a token until this tab is closed. */
export function setToken(value) {
  token = value;
  try {
    sessionStorage.setItem(TOKEN, value);
  } catch {
    // a browser that stores nothing: then it is kept until the page is left
  }
}

export const fetchIndexes = () => json("v1/indexes");
export const fetchMap = (index, n) => json(`v1/indexes/${encodeURIComponent(index)}/map?n=${n}`);
export const search = (body, signal) => json("v1/search", { body: { ...body, explain: true }, signal });

/** Score everything; `onProgress(scored, total)` on the way. */
export async function scoreEverything(body, { signal, onProgress }) {
  const response = await request("v1/search:exhaustive", { body, signal });
  for await (const line of lines(response)) {
    if (line.event === "progress") onProgress(line.scored, line.total);
    if (line.event === "problem") throw problemOf(line, response);
    if (line.event === "answer") return line;
  }
  throw new Problem("unreachable", { title: "The service ended before the check was done." });
}

async function json(path, options) {
  const response = await request(path, options);
  return unlessBroken(() => response.json());
}

async function request(path, { body, signal } = {}) {
  const headers = { ...authorization(), ...(body && { "Content-Type": "application/json" }) };
  const options = body ? { method: "POST", body: JSON.stringify(body), headers, signal } : { headers, signal };
  const response = await unlessBroken(() => fetch(new URL(path, ROOT), options));
  if (!response.ok) throw problemOf(await response.json().catch(() => ({})), response);
  return response;
}

/** What a step of a request gives; a connection that fails is a problem, one that was cancelled stays an AbortError. */
async function unlessBroken(step) {
  try {
    return await step();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("unreachable", {
      title: "The service can't be reached.",
      detail: "Is it still running? Nothing was lost: try again when it is back.",
    });
  }
}

function problemOf(found, response) {
  const wait = Number.parseFloat(response.headers.get("Retry-After"));
  return new Problem(
    String(found.type ?? "")
      .split(":")
      .pop() || `status-${response.status}`,
    {
      title: found.title ?? `The service answered ${response.status}.`,
      detail: found.detail ?? "",
      retrySeconds: Number.isFinite(wait) ? wait : null,
      requestId: found.request_id ?? null,
    },
  );
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await unlessBroken(() => reader.read());
    const complete = (rest + (value ?? "")).split("\n");
    rest = done ? "" : complete.pop();
    for (const line of complete) if (line) yield JSON.parse(line);
    if (done) return;
  }
}

/** Headers hold bytes, so a token goes as those of its UTF-8. */
function authorization() {
  if (!token) return {};
  const bytes = Array.from(new TextEncoder().encode(token), (byte) => String.fromCharCode(byte));
  return { Authorization: `Bearer ${bytes.join("")}` };
}

function storedToken() {
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return "";
  }
}
