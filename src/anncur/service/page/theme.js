// Dark and light: as the system has it, unless the button says otherwise.

const THEMES = ["auto", "light", "dark"];
const KEPT = "anncur-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = [];

export const isDark = () => {
  const { theme } = document.documentElement.dataset;
  return theme === "dark" || (theme !== "light" && system.matches);
};

/** Let a button change the theme; it is kept for the next visit. */
export function startTheme(button) {
  show(button, kept());
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(kept()) + 1) % THEMES.length];
    show(button, next);
    try {
      localStorage.setItem(KEPT, next);
    } catch {
      // a browser that stores nothing: then it lasts until the page is left
    }
  });
  system.addEventListener("change", tell);
}

/** Call this when colours change. */
export const onThemeChange = (listener) => listeners.push(listener);

function show(button, theme) {
  document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  tell();
}

const tell = () => listeners.forEach((listener) => listener());

function kept() {
  const found = stored() ?? document.documentElement.dataset.theme;
  return THEMES.includes(found) ? found : "auto";
}

function stored() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null; // a browser that stores nothing
  }
}
