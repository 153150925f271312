"use strict";
// "Change the target distribution": the controls and their effects.

function startExplorer() {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const root = document.getElementById("explorer");
  const find = (selector) => root.querySelector(selector);
  const numClasses = data.classNames.length;
  const methods = data.methods.map((method) => decodeMethod(method, numClasses));
  const order = testedClasses(data.order, methods);
  const rankOf = new Map(order.map((c, rank) => [c, rank]));
  const axis = data.counts ? `Classes, most training ${data.unit} first` : "Classes by id";
  const source = data.counts && normalised(Float64Array.from(data.counts));
  const state = {
    base: exponentialProfile(order, 0),
    name: "uniform",
    groupWeights: {},
    classWeights: new Float64Array(numClasses).fill(1),
    method: 0,
    selected: order[0],
    hovered: null,
    highest: null, // the mix's axis is held still while a bar is dragged
  };
  let prior = null;
  let results = null;

  const byRank = (values) => values && order.map((c) => values[c]);

  function update() {
    const start = performance.now();
    prior = targetPrior(state, { order, groups: data.groups });
    if (prior) {
      results = methods.map((method) => evaluateMethod(method, prior));
      showScores(root, methods, results);
      showPairs(find(".pairs"), methods[state.method], results[state.method]);
    }
    showTarget();
    draw();
    root.dataset.milliseconds = (performance.now() - start).toFixed(2);
  }

  function draw() {
    if (!prior) return;
    const { raw, compensated } = results[state.method];
    const selected = rankOf.get(state.hovered ?? state.selected);
    const mix = { target: byRank(prior), source: byRank(source) };
    root.dataset.highest = drawMix(find("#mix"), {
      ...mix, highest: state.highest, selected, axis,
    });
    drawClasses(find("#classes"), {
      raw: byRank(raw.ofClass), compensated: byRank(compensated?.ofClass), selected, axis,
    });
    const hue = methods[state.method].colour;
    drawReliability(find("#reliability"), { raw, compensated, hue });
    showReading();
  }

  // What is written

  function showTarget() {
    const edited = isEdited(state) ? ", edited" : "";
    find("#target-name").textContent = state.name + edited;
    find("#shift").setAttribute("aria-valuetext", state.name + edited);
    find(".sentence").textContent = prior
      ? describeResult(
          state.name + edited, data.unit, methods[state.method], results[state.method]
        )
      : "All class weights are 0, so there is no target. Set at least one weight above 0.";
    find("#class-weight").value = toStop(state.classWeights[state.selected]);
    showWeight(find("#class-weight"), state.classWeights[state.selected]);
  }

  function showReading() {
    const c = state.hovered ?? state.selected;
    const { raw, compensated } = results[state.method];
    const training = data.counts ? `${data.counts[c].toLocaleString("en")} training ${data.unit}, ` : "";
    const after = compensated ? `, ${percent(compensated.ofClass[c])} re-targeted` : "";
    find("#reading").textContent =
      `${data.classNames[c]}: ${training}${percent(prior[c], 2)} of the target; ` +
      `accuracy of ${methods[state.method].name}: ${percent(raw.ofClass[c])} as trained${after}.`;
  }

  function showPairs(list, method, { rawAnswers, compensatedAnswers: after }) {
    const pairs = after
      ? changedPairs(
          confusion(method.runs, rawAnswers, numClasses),
          confusion(method.runs, after, numClasses),
          prior
        )
      : [];
    list.replaceChildren(...pairs.map((pair) => pairItem(pair, data.classNames)));
    if (!pairs.length) list.append(element("li", "", emptyPairs(method)));
  }

  // What is set

  function setBase(base, name, shift) {
    state.base = base;
    state.name = name;
    if (shift !== undefined) find("#shift").value = shift;
    update();
  }

  function setShift(shift) {
    setBase(exponentialProfile(order, shift), shiftName(shift), shift);
  }

  function reset() {
    state.classWeights.fill(1);
    for (const input of root.querySelectorAll("#group-weights input")) {
      input.value = 0;
      state.groupWeights[input.dataset.group] = 1;
      showWeight(input, 1);
    }
    find("#counts-error").textContent = "";
    setShift(0);
  }

  function useCounts() {
    const error = find("#counts-error");
    error.textContent = "";
    try {
      setBase(parseCounts(find("#counts").value, numClasses), "pasted counts", 0);
    } catch (problem) {
      error.textContent = problem.message;
    }
  }

  function select(c) {
    state.selected = c;
    find("#class").value = c;
    showTarget();
    draw();
  }

  // The weight that gives a class this share, whatever the others weigh.
  function setShare(c, share) {
    if (!(prior[c] < 1) || !(state.classWeights[c] > 0)) state.classWeights[c] = 1;
    const now = targetPrior(state, { order, groups: data.groups })[c];
    if (!(now > 0 && now < 1)) return;
    const wanted = Math.min(share, 0.99);
    state.classWeights[c] *= ((wanted / (1 - wanted)) * (1 - now)) / now;
    update();
  }

  // What listens

  function addPresets() {
    const shifts = [["Backward 50", -1], ["Backward 10", -shiftOf(10)], ["Uniform", 0],
      ["Forward 10", shiftOf(10)], ["Forward 50", 1]];
    const buttons = shifts.map(([text, shift]) => button(text, () => setShift(shift)));
    if (data.counts) {
      const use = () => setBase(Float64Array.from(data.counts), "training prior", 0);
      buttons.push(button("Training prior", use));
    }
    const tested = methods[0].runs[0].counts;
    buttons.push(button("Test set prior", () => setBase(tested, "test set prior", 0)));
    buttons.push(button("Reset", reset));
    find(".presets").append(...buttons);
  }

  function addGroupWeights() {
    for (const [name, members] of Object.entries(data.groups ?? {})) {
      state.groupWeights[name] = 1;
      if (!members.length) continue;
      const row = weightRow(`${name} (${members.length})`, name);
      const input = row.querySelector("input");
      input.addEventListener("input", () => {
        state.groupWeights[name] = fromStop(input.value);
        showWeight(input, state.groupWeights[name]);
        update();
      });
      showWeight(input, 1);
      find("#group-weights").append(row);
    }
  }

  function addClasses() {
    const options = order.map((c) => {
      const option = element("option", "", data.classNames[c]);
      option.value = c;
      return option;
    });
    find("#class").append(...options);
    find("#class").addEventListener("change", (event) => select(Number(event.target.value)));
    find("#class-weight").addEventListener("input", (event) => {
      state.classWeights[state.selected] = fromStop(event.target.value);
      update();
    });
  }

  function addMethods() {
    methods.forEach((method, index) => {
      find(".scores tbody").append(scoreRow(method));
      find(".closer").append(methodChoice(method, index, () => {
        state.method = index;
        update();
      }));
    });
    find(".closer").hidden = methods.length < 2;
  }

  function addPointer(canvas) {
    const classAt = (event) => order[rankAt(canvas, event.clientX, order.length)];
    canvas.addEventListener("pointermove", (event) => {
      if (state.highest !== null || !prior) return;
      state.hovered = classAt(event);
      draw();
    });
    canvas.addEventListener("pointerleave", () => {
      state.hovered = null;
      draw();
    });
    canvas.addEventListener("pointerdown", (event) => prior && select(classAt(event)));
  }

  // A finger scrolls the page; a mouse or a pen pulls the bar.
  function addDragging(canvas) {
    const pull = (event) =>
      setShare(state.selected, shareAt(canvas, event.clientY, state.highest));
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || !prior) return;
      canvas.setPointerCapture(event.pointerId);
      state.highest = Number(root.dataset.highest);
      state.hovered = null;
      pull(event);
    });
    canvas.addEventListener("pointermove", (event) => state.highest !== null && pull(event));
    const release = () => {
      state.highest = null;
      draw();
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
  }

  addPresets();
  addGroupWeights();
  addClasses();
  addMethods();
  find("#shift").addEventListener("input", (event) => setShift(Number(event.target.value)));
  find("#use-counts").addEventListener("click", useCounts);
  addPointer(find("#mix"));
  addDragging(find("#mix"));
  addPointer(find("#classes"));
  find(".mix-source").hidden = !data.counts;
  find(".swatches").hidden = !methods.some((method) => method.isKnown);
  find(".explorer").hidden = false;
  find("#class").value = state.selected;
  update();
  new ResizeObserver(draw).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// Classes without a test image cannot be measured: they are no part of any target.
function testedClasses(order, methods) {
  const runs = methods.flatMap((method) => method.runs);
  return order.filter((c) => runs.every((run) => run.counts[c] > 0));
}

function isEdited({ groupWeights, classWeights }) {
  return [...Object.values(groupWeights), ...classWeights].some((w) => w !== 1);
}

if (document.getElementById("explorer-data")) startExplorer();
