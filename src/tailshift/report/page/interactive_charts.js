"use strict";
// The charts of "Change the target distribution": each draws on a canvas in the page's colours.

const MARGIN = { left: 48, right: 8, top: 10, bottom: 30 };
const SMALLEST_BAR = 2.5; // pixels; with more classes than fit, neighbours are averaged

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A canvas ready to be drawn on, in CSS pixels, and the box inside its axes.
function prepare(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = `12px ${getComputedStyle(canvas).fontFamily}`;
  context.lineJoin = "round";
  const box = {
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(width - MARGIN.left - MARGIN.right, 1),
    height: Math.max(height - MARGIN.top - MARGIN.bottom, 1),
  };
  return { context, box };
}

function y(box, share) {
  return box.top + box.height * (1 - share);
}

function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((m) => m * power).find((top) => top >= value * 0.9999);
}

function percentTick(value) {
  return `${Number((100 * value).toPrecision(3))} %`;
}

function drawAxes(context, box, highest, title, steps = 4) {
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let i = 0; i <= steps; i++) {
    const at = Math.round(y(box, i / steps)) + 0.5;
    context.strokeStyle = colour(i ? "--rule" : "--muted");
    context.beginPath();
    context.moveTo(box.left, at);
    context.lineTo(box.left + box.width, at);
    context.stroke();
    context.fillStyle = colour("--muted");
    context.fillText(percentTick((highest * i) / steps), box.left - 6, at);
  }
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  context.fillText(title, box.left + box.width / 2, box.top + box.height + 22);
}

// Classes on the x axis

// How many bars there are, and which ranks each of them stands for.
function barLayout(box, numClasses) {
  const perBar = Math.ceil(numClasses / Math.max(Math.floor(box.width / SMALLEST_BAR), 1));
  const numBars = Math.ceil(numClasses / perBar);
  const width = box.width / numBars;
  return { perBar, numBars, width, gap: width > 6 ? Math.min(width * 0.18, 8) : 0.5 };
}

function averaged(values, perBar) {
  if (perBar === 1) return values;
  const bars = [];
  for (let start = 0; start < values.length; start += perBar) {
    const part = values.slice(start, start + perBar);
    bars.push(part.reduce((a, b) => a + b, 0) / part.length);
  }
  return bars;
}

function rankAt(canvas, clientX, numClasses) {
  const { left, width } = canvas.getBoundingClientRect();
  const inner = width - MARGIN.left - MARGIN.right;
  const rank = Math.floor(((clientX - left - MARGIN.left) / inner) * numClasses);
  return Math.min(Math.max(rank, 0), numClasses - 1);
}

function shareAt(canvas, clientY, highest) {
  const { top, height } = canvas.getBoundingClientRect();
  const inner = height - MARGIN.top - MARGIN.bottom;
  const share = 1 - (clientY - top - MARGIN.top) / inner;
  return Math.min(Math.max(share, 0), 1) * highest;
}

function fillBar(context, box, layout, bar, from, to) {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  const left = box.left + bar * layout.width + layout.gap / 2;
  context.fillRect(left, y(box, high), layout.width - layout.gap, y(box, low) - y(box, high));
}

function markRank(context, box, numClasses, rank) {
  const at = box.left + ((rank + 0.5) / numClasses) * box.width;
  context.fillStyle = colour("--ink");
  context.beginPath();
  context.moveTo(at, box.top + box.height + 2);
  context.lineTo(at - 5, box.top + box.height + 9);
  context.lineTo(at + 5, box.top + box.height + 9);
  context.fill();
}

function classTitle({ perBar }, axis) {
  return perBar === 1 ? axis : `${axis}, ${perBar} to a bar`;
}

// p_t of each class by rank, and the training prior as a line. Returns the axis's top.
function drawMix(canvas, { target, source, highest, selected, axis }) {
  const { context, box } = prepare(canvas);
  const layout = barLayout(box, target.length);
  const bars = averaged(target, layout.perBar);
  const line = source && averaged(source, layout.perBar);
  const top = highest ?? niceCeiling(Math.max(...bars, ...(line ?? [])));
  drawAxes(context, box, top, classTitle(layout, axis));
  context.fillStyle = colour("--accent");
  bars.forEach((p, bar) => fillBar(context, box, layout, bar, 0, Math.min(p / top, 1)));
  if (line) drawSteps(context, box, layout, line.map((p) => Math.min(p / top, 1)));
  markRank(context, box, target.length, selected);
  return top;
}

function drawSteps(context, box, layout, heights) {
  context.beginPath();
  heights.forEach((height, bar) => {
    context.lineTo(box.left + bar * layout.width, y(box, height));
    context.lineTo(box.left + (bar + 1) * layout.width, y(box, height));
  });
  context.strokeStyle = colour("--card");
  context.lineWidth = 4;
  context.stroke();
  context.strokeStyle = colour("--ink");
  context.lineWidth = 1.5;
  context.stroke();
}

// Accuracy of each class by rank: kept, gained (solid) and lost (hatched).
function drawClasses(canvas, { raw, compensated, selected, axis }) {
  const { context, box } = prepare(canvas);
  const layout = barLayout(box, raw.length);
  const before = averaged(raw, layout.perBar);
  const after = compensated ? averaged(compensated, layout.perBar) : before;
  drawAxes(context, box, 1, classTitle(layout, axis));
  const hatch = hatchPattern(context);
  before.forEach((_, bar) => {
    const [a, b] = [before[bar], after[bar]];
    context.fillStyle = colour("--kept");
    fillBar(context, box, layout, bar, 0, Math.min(a, b));
    context.fillStyle = b > a ? colour("--gained") : hatch;
    fillBar(context, box, layout, bar, a, b);
  });
  markRank(context, box, raw.length, selected);
}

function hatchPattern(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour("--lost");
  pen.lineWidth = 2;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift - 1, 7);
    pen.lineTo(shift + 7, -1);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

// Reliability

function drawReliability(canvas, { raw, compensated, hue }) {
  const { context, box } = prepare(canvas);
  drawAxes(context, box, 1, "Confidence", 5);
  drawConfidenceTicks(context, box);
  drawMass(context, box, (compensated ?? raw).bins.mass);
  context.setLineDash([2, 4]);
  drawLine(context, box, [[0, 0], [1, 1]], colour("--muted"), 1.5);
  context.setLineDash([6, 4]);
  drawCurve(context, box, raw.bins, hue, false);
  context.setLineDash([]);
  if (compensated) drawCurve(context, box, compensated.bins, hue, true);
}

function drawConfidenceTicks(context, box) {
  context.textAlign = "center";
  for (const at of [0, 1]) {
    context.textAlign = at ? "right" : "left";
    const x = box.left + at * box.width;
    context.fillText(percentTick(at), x, box.top + box.height + 22);
  }
}

// How much of the target lies in each bin, along the foot of the diagram.
function drawMass(context, box, mass) {
  const largest = Math.max(...mass);
  context.fillStyle = colour("--rule");
  mass.forEach((m, bin) => {
    const [width, height] = [box.width / mass.length, (0.25 * box.height * m) / largest];
    context.fillRect(box.left + bin * width + 1, y(box, 0) - height, width - 2, height);
  });
}

function drawCurve(context, box, { mass, confidence, correct }, hue, isFilled) {
  const points = [];
  mass.forEach((m, bin) => {
    if (m > 5e-4) points.push([confidence[bin] / m, correct[bin] / m]);
  });
  drawLine(context, box, points, hue, 2);
  context.setLineDash([]);
  for (const [confidenceOfBin, accuracyOfBin] of points) {
    context.beginPath();
    const x = box.left + confidenceOfBin * box.width;
    context.arc(x, y(box, accuracyOfBin), 3.5, 0, 2 * Math.PI);
    context.fillStyle = isFilled ? hue : colour("--card");
    context.fill();
    context.stroke();
  }
}

function drawLine(context, box, points, hue, width) {
  context.strokeStyle = hue;
  context.lineWidth = width;
  context.beginPath();
  for (const [x, share] of points) context.lineTo(box.left + x * box.width, y(box, share));
  context.stroke();
}
