// Applies the chosen theme before the first paint. Without a choice, the system decides.
(() => {
  try {
    const theme = localStorage.getItem("lazaret-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is not available: the system decides.
  }
})();
