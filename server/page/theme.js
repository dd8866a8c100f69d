/* Dark or light: as the system is, until somebody chooses. Runs before anything is painted. */

const THEME = "sidestream.theme";
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function chosenTheme() {
  return localStorage.getItem(THEME) ?? (systemIsDark.matches ? "dark" : "light");
}

function applyTheme() {
  const theme = chosenTheme();
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.title = `Switch to ${theme === "dark" ? "light" : "dark"} colours`;
  }
}

applyTheme();
systemIsDark.addEventListener("change", applyTheme);
addEventListener("DOMContentLoaded", () => {
  applyTheme();
  document.getElementById("theme").addEventListener("click", () => {
    localStorage.setItem(THEME, chosenTheme() === "dark" ? "light" : "dark");
    applyTheme();
  });
});
