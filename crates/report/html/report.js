// Draws everything the page has a place for.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const span = Math.max(1, ...data.timelines.map((timeline) => timeline.span));
  const view = new TimeView(span);
  const place = (id) => document.getElementById(id);
  if (place("swimlane")) {
    const swimlane = new Swimlane(place("swimlane"), data, view);
    const actions = { in: () => view.zoom(0.6), out: () => view.zoom(1 / 0.6), all: () => view.showAll() };
    for (const button of document.querySelectorAll("button[data-view]")) {
      button.addEventListener("click", actions[button.dataset.view]);
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => swimlane.redraw());
  }
  if (place("memory")) drawMemory(place("memory"), place("memory-help"), data, view);
  if (place("losses")) drawLosses(place("losses"), data.losses);
  if (place("accuracies")) drawAccuracies(place("accuracies"), data.losses);
})();
