"use strict";
// Legends and tooltips of the figures, which are drawn without this script. The numbers
// of a tooltip come from the table that the figure names.

function startPlot(plot) {
  const table = document.getElementById(plot.dataset.table);
  const [columns, rows] = [table.tHead.rows[0].cells, table.tBodies[0].rows];
  const [area, guide, tip] = [".area", ".guide", ".tip"].map((part) => plot.querySelector(part));
  const lines = [...plot.querySelectorAll("[data-column]")];
  const buttons = [...plot.parentElement.querySelectorAll(".legend button")];
  let place = -1;

  function made(tag, ...content) {
    const element = document.createElement(tag);
    element.append(...content);
    return element;
  }

  function entry(line) {
    const { column } = line.dataset;
    const label = buttons[lines.indexOf(line)] ?? columns[column];
    const value = made("span", rows[place].cells[column].textContent);
    return made("p", ...label.cloneNode(true).childNodes, value);
  }

  function show(next) {
    place = Math.min(Math.max(next, 0), rows.length - 1);
    const shown = lines.filter((line) => !line.hasAttribute("hidden"));
    tip.replaceChildren(made("strong", rows[place].cells[0].textContent), ...shown.map(entry));
    const share = (place + 0.5) / rows.length;
    for (const end of ["x1", "x2"]) guide.setAttribute(end, `${100 * share}%`);
    guide.style.visibility = "visible";
    const [box, inner] = [plot.getBoundingClientRect(), area.getBoundingClientRect()];
    const x = inner.left - box.left + share * inner.width;
    tip.style.left = share < 0.5 ? `${x + 12}px` : "auto";
    tip.style.right = share < 0.5 ? "auto" : `${box.width - x + 12}px`;
  }

  function hide() {
    place = -1;
    tip.replaceChildren();
    guide.style.visibility = "";
  }

  function point(event) {
    const { left, width } = area.getBoundingClientRect();
    show(Math.floor(((event.clientX - left) / width) * rows.length));
  }

  function press(event) {
    const steps = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: rows.length };
    if (event.key === "Escape") hide();
    if (!(event.key in steps)) return;
    event.preventDefault();
    show(steps[event.key]);
  }

  buttons.forEach((button, index) =>
    button.addEventListener("click", () => {
      const isHidden = lines[index].toggleAttribute("hidden");
      button.setAttribute("aria-pressed", String(!isHidden));
    })
  );
  area.addEventListener("pointermove", point);
  area.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("keydown", press);
  plot.addEventListener("blur", hide);
}

document.querySelectorAll(".plot").forEach(startPlot);
