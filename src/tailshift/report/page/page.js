"use strict";
// Draws the figures from the JSON beside them, in the colours of the page's scheme.
(() => {
  const plots = [...document.querySelectorAll(".plot")];

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const [ink, muted, rule, card] = ["--ink", "--muted", "--rule", "--card"].map(
      (name) => style.getPropertyValue(name).trim()
    );
    return {
      "font.color": muted,
      "xaxis.gridcolor": rule,
      "yaxis.gridcolor": rule,
      "hoverlabel.bgcolor": card,
      "hoverlabel.font.color": ink,
      "modebar.bgcolor": "transparent",
      "modebar.color": muted,
      "modebar.activecolor": ink,
    };
  }

  async function draw(plot) {
    const figure = JSON.parse(document.getElementById(plot.id + "-data").textContent);
    await Plotly.newPlot(plot, figure.data, figure.layout, {
      responsive: true,
      displaylogo: false,
      modeBarButtons: [["toImage"]],
      toImageButtonOptions: { format: "svg", filename: plot.id },
    });
    await Plotly.relayout(plot, colours());
  }

  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    const plot = document.getElementById(button.dataset.plot);
    Plotly.restyle(plot, { visible: shown }, [Number(button.dataset.trace)]);
  }

  plots.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    plots.forEach((plot) => Plotly.relayout(plot, colours()))
  );
  document
    .querySelectorAll(".legend button")
    .forEach((button) => button.addEventListener("click", () => toggle(button)));
})();
