// What marks are, told when pointed at: the cells of their row in the table of all rows.

(() => {
  // How far from the pointer a mark may be, in pixels.
  const NEAR = 14;
  const details = document.getElementById("rows");
  if (!details) return;
  const columns = [...details.querySelectorAll("thead th")].map((cell) => cell.textContent);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const hidden = new Set();

  const rowOf = (mark) => document.getElementById(`row-${mark.dataset.row}`);

  function tell(mark) {
    const list = document.createElement("dl");
    [...rowOf(mark).cells].forEach((cell, index) => {
      if (cell.textContent === "") return;
      const [term, description] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = columns[index];
      description.textContent = cell.textContent;
      list.append(term, description);
    });
    tip.replaceChildren(list);
  }

  function moveTip(event) {
    const { offsetWidth, offsetHeight } = tip;
    const x = Math.min(event.clientX + 14, window.innerWidth - offsetWidth - 8);
    const below = event.clientY + 16;
    const y = below + offsetHeight > window.innerHeight ? event.clientY - offsetHeight - 12 : below;
    tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  for (const plot of document.querySelectorAll("svg[data-plot]")) {
    const marks = [...plot.querySelectorAll("use")].map((mark) => ({
      mark,
      series: mark.parentNode.dataset.series,
      x: Number(mark.getAttribute("x")),
      y: Number(mark.getAttribute("y")),
    }));
    const ring = document.createElementNS(plot.namespaceURI, "circle");
    ring.setAttribute("class", "ring");
    ring.setAttribute("r", "6");
    let found = null;

    const nearest = (event) => {
      const box = plot.getBoundingClientRect();
      const scale = plot.viewBox.baseVal.width / box.width;
      const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      let [best, least] = [null, (NEAR * scale) ** 2];
      for (const it of marks) {
        const distance = (it.x - x) ** 2 + (it.y - y) ** 2;
        if (distance <= least && !hidden.has(it.series)) [best, least] = [it, distance];
      }
      return best;
    };
    plot.addEventListener("pointermove", (event) => {
      const best = nearest(event);
      if (best !== found) {
        found = best;
        ring.remove();
        tip.hidden = best === null;
        plot.style.cursor = best === null ? "" : "pointer";
        if (best !== null) {
          ring.setAttribute("cx", best.x);
          ring.setAttribute("cy", best.y);
          plot.append(ring);
          tell(best.mark);
        }
      }
      if (found !== null) moveTip(event);
    });
    plot.addEventListener("pointerleave", () => {
      found = null;
      tip.hidden = true;
      ring.remove();
    });
    plot.addEventListener("click", (event) => {
      const best = nearest(event);
      if (best === null) return;
      tip.hidden = true;
      details.open = true;
      const row = rowOf(best.mark);
      row.scrollIntoView({ block: "center" });
      row.focus({ preventScroll: true });
    });
  }

  for (const box of document.querySelectorAll("input[data-series]")) {
    box.addEventListener("change", () => {
      const { series } = box.dataset;
      if (box.checked) hidden.delete(series);
      else hidden.add(series);
      for (const group of document.querySelectorAll(`g[data-series="${series}"]`)) {
        group.style.display = box.checked ? "" : "none";
      }
    });
  }
})();
