"use strict";
// The arithmetic of "Move the target": functions of logits, labels and priors, no page.

const NUM_BINS = 20;
const LARGEST_RATIO = 50; // the slider ends at backward and forward 50
const NUM_PAIRS = 8;

// Reading what the page carries

function decodeBytes(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => halfToNumber(bits));

function decodeHalves(base64) {
  const halves = new Uint16Array(decodeBytes(base64));
  const numbers = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) numbers[i] = HALVES[halves[i]];
  return numbers;
}

// One run, decoded once: what does not depend on the target is worked out here.
function decodeRun(run, numClasses) {
  const logits = decodeHalves(run.logits); // (N, C), row by row
  const labels = new Uint16Array(decodeBytes(run.labels)); // (N,)
  const { trainedPrior } = run;
  return {
    logits,
    labels,
    trainedPrior,
    counts: countLabels(labels, numClasses), // n_y
    raw: answer(exponentials(logits, numClasses), uniformPrior(numClasses)),
    likelihoods: trainedPrior && exponentials(logits, numClasses, trainedPrior),
  };
}

function decodeMethod(method, numClasses) {
  const runs = method.runs.map((run) => decodeRun(run, numClasses));
  return { ...method, runs, isKnown: runs.every((run) => run.trainedPrior) };
}

function countLabels(labels, numClasses) {
  const counts = new Float64Array(numClasses);
  for (const y of labels) counts[y]++;
  return counts;
}

// e^(f − log p_trained), each row divided by its largest: proportional to p(x | y).
// Without a prior the row's largest logit itself is taken off, so raw ties stay ties.
function exponentials(logits, numClasses, prior) {
  const values = new Float64Array(logits.length);
  const logPrior = Float64Array.from({ length: numClasses }, (_, c) =>
    prior ? Math.log(prior[c]) : 0
  );
  for (let start = 0; start < logits.length; start += numClasses) {
    let largest = -Infinity;
    for (let c = 0; c < numClasses; c++) {
      const z = logits[start + c] - logPrior[c];
      values[start + c] = z;
      if (z > largest) largest = z;
    }
    for (let i = start; i < start + numClasses; i++) {
      values[i] = Math.exp(values[i] - largest);
    }
  }
  return values;
}

// Targets

function uniformPrior(numClasses) {
  return new Float64Array(numClasses).fill(1 / numClasses);
}

function normalised(weights) {
  const sum = weights.reduce((a, b) => a + b, 0);
  return sum > 0 ? weights.map((w) => w / sum) : null;
}

// p(rank k) ∝ 50^(−s k / (K − 1)): s = 1 is forward 50, 0 uniform, −1 backward 50.
function exponentialProfile(order, shift) {
  const profile = new Float64Array(Math.max(...order) + 1);
  const last = Math.max(order.length - 1, 1);
  order.forEach((c, k) => (profile[c] = LARGEST_RATIO ** ((-shift * k) / last)));
  return profile;
}

// The base mix times the weights of groups and single classes; null if nothing is left.
function targetPrior({ base, groupWeights, classWeights }, { order, groups }) {
  const weights = new Float64Array(classWeights.length);
  for (const c of order) weights[c] = base[c] * classWeights[c];
  for (const [name, members] of Object.entries(groups ?? {})) {
    for (const c of members) weights[c] *= groupWeights[name];
  }
  return normalised(weights);
}

// Counts as people paste them: a list, a column, JSON. Throws with a sentence.
function parseCounts(text, numClasses) {
  const parts = text.split(/[\s,;[\]]+/).filter(Boolean);
  const wrong = parts.find((part) => !/^(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(part));
  if (wrong !== undefined) {
    throw new Error(`Counts must be numbers of at least 0, but “${wrong}” is there.`);
  }
  if (parts.length !== numClasses) {
    throw new Error(
      `There must be ${numClasses} counts, one per class in the order of the class ids, ` +
        `but there are ${parts.length}.`
    );
  }
  const counts = Float64Array.from(parts, Number);
  if (!counts.some((n) => n > 0) || !counts.every(Number.isFinite)) {
    throw new Error("Counts must be finite and not all 0.");
  }
  return counts;
}

// Answers

// The likeliest class of each row and its probability, softmax(f − log p_trained + log p_t).
function answer(likelihoods, prior, exactRow) {
  const numClasses = prior.length;
  const size = likelihoods.length / numClasses;
  const classes = new Uint16Array(size);
  const confidences = new Float64Array(size);
  for (let row = 0, start = 0; row < size; row++, start += numClasses) {
    let sum = 0;
    let best = 0;
    let top = -1;
    for (let c = 0; c < numClasses; c++) {
      const value = likelihoods[start + c] * prior[c];
      sum += value;
      if (value > top) {
        top = value;
        best = c;
      }
    }
    if (sum < 1e-290 && exactRow) [best, top, sum] = exactRow(row);
    classes[row] = best;
    confidences[row] = top / sum;
  }
  return { classes, confidences };
}

function compensatedAnswers(run, prior) {
  return answer(run.likelihoods, prior, (row) => exactRow(run, prior, row));
}

// The same for one row whose products underflow: the sum of logarithms does not.
function exactRow({ logits, trainedPrior }, prior, row) {
  const z = Array.from(prior, (p, c) =>
    p > 0
      ? logits[row * prior.length + c] - Math.log(trainedPrior[c]) + Math.log(p)
      : -Infinity
  );
  const largest = z.reduce((a, b) => Math.max(a, b), -Infinity);
  if (largest === -Infinity) return [prior.findIndex((p) => p > 0), 0, 1];
  const sum = z.reduce((total, value) => total + Math.exp(value - largest), 0);
  return [z.indexOf(largest), 1, sum];
}

// Scores

// Each image weighs p_t(y) / n_y: the expectation under the target, nothing drawn.
function scoreRun({ labels, counts }, { classes, confidences }, prior) {
  const ofClass = new Float64Array(prior.length); // accuracy of each class
  const [mass, confidence, correct] = [0, 1, 2].map(() => new Float64Array(NUM_BINS));
  for (let i = 0; i < labels.length; i++) {
    const y = labels[i];
    const weight = prior[y] / counts[y];
    const bin = Math.max(Math.ceil(confidences[i] * NUM_BINS) - 1, 0);
    mass[bin] += weight;
    confidence[bin] += weight * confidences[i];
    if (classes[i] === y) {
      correct[bin] += weight;
      ofClass[y] += 1 / counts[y];
    }
  }
  const bins = { mass, confidence, correct };
  const accuracy = ofClass.reduce((sum, a, c) => sum + a * prior[c], 0);
  return { accuracy, ofClass, bins, calibrationError: calibrationError(bins) };
}

// The runs of a method, averaged.
function score(runs, answersOfRuns, prior) {
  const scores = runs.map((run, index) => scoreRun(run, answersOfRuns[index], prior));
  return scores.length === 1 ? scores[0] : average(scores);
}

// The mean of numbers, of vectors, or of objects that hold them.
function average(values) {
  const [first] = values;
  if (typeof first === "number") return values.reduce((a, b) => a + b, 0) / values.length;
  if (ArrayBuffer.isView(first)) {
    return first.map((_, i) => average(values.map((value) => value[i])));
  }
  const entries = Object.keys(first).map((key) => [key, average(values.map((v) => v[key]))]);
  return Object.fromEntries(entries);
}

function calibrationError({ mass, confidence, correct }) {
  return mass.reduce((sum, _, m) => sum + Math.abs(correct[m] - confidence[m]), 0);
}

function evaluateMethod({ runs, isKnown }, prior) {
  const rawAnswers = runs.map((run) => run.raw);
  const raw = score(runs, rawAnswers, prior);
  const size = smallestSize(runs, prior);
  if (!isKnown) return { size, raw, rawAnswers, compensated: null, compensatedAnswers: null };
  const answers = runs.map((run) => compensatedAnswers(run, prior));
  const compensated = score(runs, answers, prior);
  return { size, raw, rawAnswers, compensated, compensatedAnswers: answers };
}

// How many rows count, and how many of equal weight would be as precise: (Σw)² / Σw².
function sizeOf({ counts }, prior) {
  let [whole, squares] = [0, 0];
  prior.forEach((p, c) => {
    if (!(p > 0)) return;
    whole += counts[c];
    squares += (p * p) / counts[c]; // n_y samples, each of weight p / n_y
  });
  return { whole, effective: 1 / squares };
}

function smallestSize(runs, prior) {
  const sizes = runs.map((run) => sizeOf(run, prior));
  return sizes.reduce((a, b) => (b.effective < a.effective ? b : a));
}

// Share of the images of class a that are answered b, at a · C + b.
function confusion(runs, answersOfRuns, numClasses) {
  const matrix = new Float64Array(numClasses * numClasses);
  runs.forEach(({ labels, counts }, index) => {
    const { classes } = answersOfRuns[index];
    for (let i = 0; i < labels.length; i++) {
      matrix[labels[i] * numClasses + classes[i]] += 1 / (counts[labels[i]] * runs.length);
    }
  });
  return matrix;
}

// The confusions whose mass in the target changes most: [{truth, answer, before, after}].
function changedPairs(before, after, prior) {
  const numClasses = prior.length;
  const pairs = [];
  let least = 0;
  for (let i = 0; i < before.length; i++) {
    const truth = Math.floor(i / numClasses);
    const change = Math.abs(after[i] - before[i]) * prior[truth];
    if (change <= least || i % numClasses === truth) continue;
    pairs.push({ truth, answer: i % numClasses, before: before[i], after: after[i], change });
    if (pairs.length > NUM_PAIRS) {
      pairs.sort((a, b) => b.change - a.change).pop();
      least = pairs[NUM_PAIRS - 1].change;
    }
  }
  return pairs.sort((a, b) => b.change - a.change);
}
