"use strict";
// Polls the server. Its values are set as text, never as HTML.
(() => {
  const SECONDS = 3;
  const MAX_CHARTS = 8;
  const ORIGINS = {
    training: "training prior", book: "stored site prior", approved: "approved prior",
    estimate: "estimate", request: "prior of the request",
  };
  const CHANGES = { auto: "automatic", approve: "after approval", never: "never" };
  const find = (id) => document.getElementById(id);
  const percent = (share) => (100 * share).toFixed(1);
  const count = (number) => number.toLocaleString("en");
  let chosen = null;
  let version = null; // of the estimate on the page: an approval is for no other
  let timer = null;
  let drawn = "";

  function element(name, text, settings = {}) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    return Object.assign(made, settings);
  }

  function shape(name, settings) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(settings)) made.setAttribute(key, value);
    return made;
  }

  function setText(node, text) {
    if (node.textContent !== text) node.textContent = text; // announces no text twice
  }

  async function ask(path, body) {
    const headers = {};
    const token = sessionStorage.getItem("tailshift-token");
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body) headers["Content-Type"] = "application/json";
    const method = body ? "POST" : "GET";
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    const content = await response.json();
    if (response.status === 401) {
      find("login").hidden = false;
      find("all").hidden = find("site").hidden = true;
    }
    if (!response.ok) throw new Error(content.error);
    return content;
  }

  function testText(summary) {
    if (summary.p_value === null) return "too few images";
    const p = summary.p_value;
    return p < 0.0015 ? "p ≤ 0.001" : `p = ${p.toFixed(p < 0.095 ? 3 : 2)}`;
  }

  function row(summary) {
    const made = element("tr");
    const head = element("th", undefined, { scope: "row" });
    const button = element("button", undefined, { type: "button" });
    button.append(element("bdi", summary.site));
    button.addEventListener("click", () => choose(summary.site));
    head.append(button);
    made.append(head, ...Array.from({ length: 5 }, () => element("td")));
    made.dataset.site = summary.site;
    return made;
  }

  function showRows(sites) {
    const body = find("rows");
    const known = new Map([...body.rows].map((found) => [found.dataset.site, found]));
    for (const summary of sites) {
      const found = known.get(summary.site) ?? body.appendChild(row(summary));
      const cells = [
        count(summary.images_seen),
        ORIGINS[summary.mix_from],
        CHANGES[summary.adapt],
        summary.moved === null ? "–" : `${percent(summary.moved)}\u00a0%`,
        testText(summary),
      ];
      cells.forEach((text, i) => setText(found.cells[i + 1], text));
      found.classList.toggle("chosen", summary.site === chosen);
      found.querySelector("button").setAttribute("aria-pressed", summary.site === chosen);
    }
  }

  function showAlarms(sites) {
    const alarms = sites.flatMap(({ site, alarms }) => alarms.map((text) => [site, text]));
    const key = JSON.stringify(alarms);
    if (find("alarms").dataset.key === key) return;
    find("alarms").dataset.key = key;
    find("alarms").replaceChildren(
      ...alarms.map(([site, text]) => {
        const item = element("li");
        const name = element("strong");
        name.append(element("bdi", site));
        item.append(name, ` ${text}`);
        return item;
      })
    );
  }

  function expectations(site) {
    const text = ({ value, low, high }) =>
      `${percent(value)}\u00a0% (${percent(low)} to ${percent(high)})`;
    const { expected_as_trained: asTrained, expected_retargeted: retargeted } = site;
    if (retargeted) {
      return [
        ["Expected accuracy, training prior", text(asTrained)],
        ["Expected accuracy, estimated prior", text(retargeted)],
      ];
    }
    return site.doubt ? [["Expected accuracy", "not available"]] : [];
  }

  function showFacts(site) {
    const { summary } = site;
    const facts = [
      ["Images seen", count(summary.images_seen)],
      ["Prior in use", ORIGINS[summary.mix_from]],
      ["Shift test", testText(summary)],
      ["Distance from training prior", summary.moved === null ? "–" : `${percent(summary.moved)}\u00a0%`],
    ];
    facts.push(...expectations(site));
    const list = find("facts");
    if (list.children.length !== facts.length) {
      list.replaceChildren(
        ...facts.map(([name]) => {
          const pair = element("div");
          pair.append(element("dt", name), element("dd"));
          return pair;
        })
      );
    }
    facts.forEach(([, text], i) => setText(list.children[i].lastChild, text));
  }

  function points(site) {
    const history = site.history.map((point) => ({ ...point }));
    const { images_seen: seen } = site.summary;
    const last = history.at(-1);
    if (last && seen > last.images_seen) {
      const bounds = { low: site.low ?? last.low, high: site.high ?? last.high };
      history.push({ images_seen: seen, estimate: site.estimate, ...bounds });
    }
    return history;
  }

  function chart(all, site, history, c, top) {
    const [width, height] = [220, 90];
    const [first, last] = [history[0].images_seen, history.at(-1).images_seen];
    const x = (seen) => (last > first ? ((seen - first) / (last - first)) * width : width / 2);
    const y = (share) => height - (Math.min(share, top) / top) * height;
    const at = (point, share) => `${x(point.images_seen).toFixed(1)} ${y(share).toFixed(1)}`;
    const across = (share) => `M0 ${y(share).toFixed(1)}H${width}`;
    const edge = [
      ...history.map((point) => at(point, Math.max(point.high[c], point.estimate[c]))),
      ...[...history].reverse().map((point) => at(point, Math.min(point.low[c], point.estimate[c]))),
    ];
    const line = history.map((point) => at(point, point.estimate[c])).join("L");
    const made = shape("svg", { viewBox: `-44 -10 ${width + 48} ${height + 30}`, role: "img" });
    const label = `${percent(site.estimate[c])} %, training ${percent(all.training[c])} %`;
    made.setAttribute("aria-label", `${all.classes[c]}: estimate ${label}`);
    made.append(
      shape("path", { class: "axis", d: `M0 0H${width}M0 ${height}H${width}` }),
      shape("path", { class: "band", d: `M${edge.join("L")}Z` }),
      shape("path", { class: "training", d: across(all.training[c]) })
    );
    if (site.approved) made.append(shape("path", { class: "approved", d: across(site.approved[c]) }));
    made.append(shape("path", { class: "estimate", d: `M${line}` }));
    const [cx, cy] = at(history.at(-1), site.estimate[c]).split(" ");
    made.append(shape("circle", { class: "estimate-now", cx, cy, r: 3 }));
    const texts = [[-4, 4, "end", `${(100 * top).toFixed(0)} %`], [-4, height + 4, "end", "0"]];
    if (last > first) texts.push([0, height + 17, "start", count(first)]);
    texts.push([last > first ? width : width / 2, height + 17, last > first ? "end" : "middle", count(last)]);
    for (const [tx, ty, anchor, text] of texts) {
      const node = shape("text", { x: tx, y: ty, "text-anchor": anchor });
      node.textContent = text;
      made.append(node);
    }
    return made;
  }

  function showCharts(all, site) {
    const history = points(site);
    const moved = all.training.map((share, c) => Math.abs((site.estimate?.[c] ?? share) - share));
    const order = moved.map((_, c) => c).sort((a, b) => moved[b] - moved[a]);
    const shown = order.slice(0, MAX_CHARTS).sort((a, b) => a - b);
    const key = JSON.stringify([chosen, history, site.approved]);
    if (key === drawn) return;
    drawn = key;
    const highest = Math.max(
      0.05, ...shown.flatMap((c) => [all.training[c], ...history.flatMap((p) => [p.high[c], p.estimate[c]])])
    );
    const top = Math.min(1, Math.ceil(10 * highest) / 10);
    find("charts").replaceChildren(
      ...(history.length ? shown : []).map((c) => {
        const made = element("figure");
        const caption = element("figcaption");
        const title = element("h3");
        title.append(element("bdi", all.classes[c]));
        const now = `${percent(site.estimate[c])} %, in training ${percent(all.training[c])} %`;
        caption.append(title, element("p", now));
        made.append(caption, chart(all, site, history, c, top));
        return made;
      })
    );
    const rest = all.classes.length > shown.length;
    const few = history.length
      ? "x axis: images seen. All charts have the same scale."
      : "No estimate yet.";
    setText(find("shown"), rest && history.length ? `The ${shown.length} of ${all.classes.length} classes with the largest changes. ${few}` : few);
  }

  function showClasses(all, site) {
    const body = find("classes");
    if (body.rows.length !== all.classes.length) {
      body.replaceChildren(
        ...all.classes.map((name) => {
          const made = element("tr");
          const head = element("th", undefined, { scope: "row" });
          head.append(element("bdi", name));
          made.append(head, ...Array.from({ length: 4 }, () => element("td")));
          return made;
        })
      );
    }
    const value = (shares, c) => (shares ? percent(shares[c]) : "–");
    all.classes.forEach((_, c) => {
      const band = site.low ? `${percent(site.low[c])} to ${percent(site.high[c])}` : "–";
      const cells = [all.training, site.approved, site.estimate].map((shares) => value(shares, c));
      [...cells, band].forEach((text, i) => setText(body.rows[c].cells[i + 1], text));
    });
  }

  function showSite(all, site) {
    setText(find("name"), site.summary.site);
    showFacts(site);
    const { reason } = site.summary;
    setText(find("reason"), all.adaptation || (reason && reason[0].toUpperCase() + reason.slice(1)));
    setText(find("doubt"), site.doubt);
    find("approve").disabled = !site.estimate;
    find("approve").classList.toggle("main", site.summary.evidence === "supported");
    version = site.version;
    if (document.activeElement !== find("adapt")) find("adapt").value = site.summary.adapt;
    find("approved-key").hidden = !site.approved;
    showCharts(all, site);
    showClasses(all, site);
    find("site").hidden = false;
  }

  async function refresh() {
    clearTimeout(timer);
    try {
      const all = await ask("sites");
      const names = all.sites.map(({ site }) => site);
      if (!names.includes(chosen)) chosen = names[0] ?? null;
      const images = all.sites.reduce((sum, { images_seen: seen }) => sum + seen, 0);
      setText(find("lead"), names.length
        ? `${count(names.length)} ${names.length > 1 ? "sites" : "site"}, ${count(images)} images, ${all.classes.length} classes.`
        : "No images received yet. POST images to /predict with a site.");
      showAlarms(all.sites);
      showRows(all.sites);
      find("login").hidden = true;
      find("all").hidden = !names.length;
      if (chosen !== null) showSite(all, await ask(`site?site=${encodeURIComponent(chosen)}`));
      find("updated").className = "";
      find("updated").textContent = `Updated ${new Date().toLocaleTimeString()}, every ${SECONDS} s.`;
    } catch (error) {
      find("updated").className = "bad";
      find("updated").textContent = `Not updated: ${error.message}`;
    }
    timer = setTimeout(refresh, SECONDS * 1000);
  }

  function choose(site) {
    chosen = site;
    setText(find("told"), "");
    refresh();
  }

  async function change(path, body, done) {
    try {
      const summary = await ask(path, { site: chosen, ...body });
      setText(find("told"), done(summary));
    } catch (error) {
      setText(find("told"), error.message);
    }
    refresh();
  }

  const describePrior = (summary) => `Predictions now use the ${ORIGINS[summary.mix_from]}.`;
  find("approve").addEventListener("click", () => change("approve", { mix: "estimate", version }, describePrior));
  find("back").addEventListener("click", () =>
    change("approve", { mix: "training" }, () => "Predictions now use the training prior.")
  );
  find("adapt").addEventListener("change", (event) =>
    change("adapt", { adapt: event.target.value }, (summary) => `Adaptation policy: ${CHANGES[summary.adapt]}.`)
  );
  find("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("tailshift-token", find("token").value);
    refresh();
  });
  refresh();
})();
