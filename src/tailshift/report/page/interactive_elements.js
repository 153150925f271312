"use strict";
// The words and elements of "Change the target distribution". Names from outside are written with
// textContent alone, so that none of them becomes markup.

const WEIGHT_STOP = -6; // a weight's slider: 2^x, and no weight at all at its left end

// Words

function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

function cssPercent(share) {
  return `${100 * share}%`;
}

function signed(points) {
  return (points < 0 ? "−" : "+") + Math.abs(points).toFixed(1);
}

function shiftOf(ratio) {
  return Math.log(ratio) / Math.log(LARGEST_RATIO);
}

function shiftName(shift) {
  const ratio = LARGEST_RATIO ** Math.abs(shift);
  if (ratio < 1.005) return "uniform";
  return `${shift > 0 ? "forward" : "backward"} ${Number(ratio.toPrecision(3))}`;
}

function count(number) {
  return Math.round(number).toLocaleString("en");
}

function describeResult(target, unit, { name }, { raw, compensated, size }) {
  const before = `On ${target}, ${name} reaches ${percent(raw.accuracy)} as trained`;
  const after = compensated
    ? ` and ${percent(compensated.accuracy)} re-targeted`
    : "; the prior of its logits is unknown, so they are not re-targeted";
  const { whole, effective } = size;
  return `${before}${after} (${count(whole)} weighted ${unit}, effectively ${count(effective)}).`;
}

function emptyPairs({ isKnown }) {
  return isKnown
    ? "No prediction changes: the logits already have the prior of this target."
    : "The prior of the logits is unknown, so no prediction changes.";
}

// Weights on a logarithmic slider

function fromStop(stop) {
  return Number(stop) <= WEIGHT_STOP ? 0 : 2 ** Number(stop);
}

function toStop(weight) {
  return weight > 0 ? Math.log2(weight) : WEIGHT_STOP;
}

function showWeight(input, weight) {
  const text = weight > 0 ? `× ${Number(weight.toPrecision(2))}` : "none";
  input.setAttribute("aria-valuetext", text);
  input.parentElement.querySelector("output").textContent = text;
}

// Elements

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

function button(text, action) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

function weightRow(text, group) {
  const row = element("label", "weight");
  const input = element("input");
  Object.assign(input, { type: "range", min: WEIGHT_STOP, max: 6, step: 0.1, value: 0 });
  input.dataset.group = group;
  row.append(element("span", "", text), input, element("output"));
  return row;
}

function methodChoice(method, index, choose) {
  const label = element("label");
  const input = element("input");
  Object.assign(input, { type: "radio", name: "method", checked: index === 0 });
  input.addEventListener("change", choose);
  const dot = element("span", "dot");
  dot.style.background = method.colour;
  label.append(input, dot, element("bdi", "", method.name));
  return label;
}

function scoreRow(method) {
  const row = element("tr");
  const name = element("th");
  name.scope = "row";
  const dot = element("span", "dot");
  dot.style.background = method.colour;
  name.append(dot, element("bdi", "", method.name));
  const track = element("td", "track-column");
  track.setAttribute("aria-hidden", "true");
  track.append(element("div", "track"));
  for (const part of ["bridge", "from", "to"]) track.firstChild.append(element("span", part));
  track.firstChild.style.color = method.colour;
  const cells = ["raw", "compensated", "change", "size"].map((kind) => element("td", kind));
  const errors = ["raw-error", "compensated-error"].map((kind) => element("td", kind));
  row.append(name, ...cells, track, ...errors);
  return row;
}

function showScores(root, methods, results) {
  const rows = root.querySelectorAll(".scores tbody tr");
  const shown = results.map(({ compensated, raw }) => (compensated ?? raw).accuracy);
  const best = Math.max(...shown).toFixed(3);
  results.forEach((result, index) => {
    const isBest = results.length > 1 && shown[index].toFixed(3) === best;
    showScore(rows[index], result, isBest);
  });
}

function showScore(row, { raw, compensated, size }, isBest) {
  const find = (name) => row.querySelector(`.${name}`);
  const after = compensated ?? raw;
  find("raw").textContent = percent(raw.accuracy);
  find("compensated").textContent = compensated ? percent(compensated.accuracy) : "–";
  find("compensated").classList.toggle("best", isBest && Boolean(compensated));
  find("change").textContent = compensated
    ? signed(100 * (compensated.accuracy - raw.accuracy))
    : "–";
  find("size").textContent = count(size.effective);
  find("raw-error").textContent = percent(raw.calibrationError);
  find("compensated-error").textContent = compensated
    ? percent(compensated.calibrationError)
    : "–";
  // In full precision, for whoever reads the page with a program.
  row.dataset.raw = raw.accuracy;
  row.dataset.compensated = compensated ? compensated.accuracy : "";
  row.dataset.size = size.effective;
  row.dataset.rawError = raw.calibrationError;
  row.dataset.compensatedError = compensated ? compensated.calibrationError : "";
  const [low, high] = [raw.accuracy, after.accuracy].sort((a, b) => a - b);
  find("bridge").style.left = cssPercent(low);
  find("bridge").style.width = cssPercent(high - low);
  find("from").style.left = cssPercent(raw.accuracy);
  find("to").style.left = cssPercent(after.accuracy);
  find("to").hidden = !compensated;
}

function pairItem({ truth, answer: given, before, after }, names) {
  const item = element("li");
  const words = element("span", "words");
  words.append(
    element("bdi", "truth", names[truth]), " predicted as ", element("bdi", "", names[given])
  );
  const shares = element("span", "shares");
  const isLess = after < before;
  shares.append(
    percent(before, 0), " → ", element("strong", isLess ? "less" : "more", percent(after, 0))
  );
  item.append(words, shares);
  return item;
}
