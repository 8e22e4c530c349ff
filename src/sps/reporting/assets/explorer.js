// The trajectory explorer: columns in typed arrays, one page of rows in the document at a time.
"use strict";
sps.PAGE = 25;
sps.FIRST_TOKENS = 500; // of a long trajectory, before it is asked for in full

sps.unpack = (packed) => {
  const kinds = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };
  const text = atob(packed.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new kinds[packed.dtype](bytes.buffer);
};

sps.explore = () => {
  const form = document.getElementById("filters");
  if (!form) return;
  const data = sps.json("rollouts");
  const col = Object.fromEntries(Object.entries(data.column).map(([k, v]) => [k, sps.unpack(v)]));
  const state = { rows: [], page: 0 };
  const texts = new Array(data.shown);
  const field = form.elements;

  const fill = (select, names) => names.forEach((name, i) => {
    const option = document.createElement("option");
    option.value = String(i);
    option.textContent = name;
    select.append(option);
  });
  fill(field.run, data.runs);
  fill(field.kind, data.kinds);
  document.querySelector("#filters .run").hidden = data.runs.length < 2;
  if (data.runs.length < 2) document.querySelector("#filters .run").style.display = "none";
  const list = document.getElementById("question-names");
  for (const [id] of data.questions.slice(0, 2000)) {
    const option = document.createElement("option");
    option.value = id;
    list.append(option);
  }

  const text = (i) => {
    if (texts[i] === undefined) {
      let out = "";
      for (let t = col.offset[i]; t < col.offset[i + 1]; t++) out += data.words[col.token[t]];
      texts[i] = out;
    }
    return texts[i];
  };
  const number = (input, otherwise) => (input.value === "" ? otherwise : Number(input.value));

  const select = () => {
    const asked = field.question.value.trim().toLowerCase();
    const questions = new Set();
    data.questions.forEach(([id, prompt], i) => {
      if (!asked || id.toLowerCase().includes(asked) || prompt.toLowerCase().includes(asked)) questions.add(i);
    });
    const run = number(field.run, -1), kind = number(field.kind, -1);
    const kept = field.kept.value;
    const first = number(field.first, 0), last = number(field.last, Infinity);
    const words = field.text.value;
    const rows = [];
    for (let i = 0; i < data.shown; i++) {
      if (run >= 0 && col.run[i] !== run) continue;
      if (kind >= 0 && col.kind[i] !== kind) continue;
      if (kept !== "" && Boolean(col.kept[i]) !== (kept === "1")) continue;
      if (col.step[i] < first || col.step[i] > last) continue;
      if (asked && !questions.has(col.question[i])) continue;
      if (words && !text(i).includes(words)) continue;
      rows.push(i);
    }
    const order = { unlikely: (a, b) => col.mean[a] - col.mean[b], likely: (a, b) => col.mean[b] - col.mean[a],
      long: (a, b) => col.length[b] - col.length[a] }[field.order.value];
    if (order) rows.sort(order);
    state.rows = rows;
    state.page = 0;
    show();
  };

  const part = (parent, tag, name, content) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (content !== undefined) node.textContent = content;
    parent.append(node);
    return node;
  };
  const heat = (q) => (q < 5 ? 0 : q < 15 ? 1 : q < 35 ? 2 : q < 58 ? 3 : q < 95 ? 4 : 5); // q is -20 log p
  const card = (i) => {
    const box = document.createElement("article");
    box.className = "rollout";
    const meta = part(box, "div", "meta");
    const kind = data.kinds[col.kind[i]], detail = data.details[col.detail[i]];
    const badge = part(meta, "span", "badge", detail && detail !== kind ? `${kind} (${detail})` : kind);
    if (kind === "correct") badge.classList.add("correct");
    if (col.kept[i]) part(meta, "span", "badge kept", "kept by L2TE");
    part(meta, "b", "", data.questions[col.question[i]][0]);
    if (data.runs.length > 1) part(meta, "span", "", data.runs[col.run[i]]);
    part(meta, "span", "", `step ${col.step[i]}, sample ${col.sample[i]}`);
    part(meta, "span", "", `mean log p ${col.mean[i].toFixed(3)}`);
    part(meta, "span", "", `reward ${+col.reward[i].toFixed(3)}`);
    part(meta, "span", "", `${col.length[i]} tokens${col.finished[i] ? "" : ", cut off"}`);
    if (data.answers[i]) part(meta, "span", "", `read as ${data.answers[i]}`);
    part(box, "div", "prompt", data.questions[col.question[i]][1]);
    const line = part(box, "div", "tokens");
    const write = (from, to) => {
      for (let t = from; t < to; t++) {
        const q = col.logq[t];
        const token = part(line, "span", `p${heat(q)}`, data.words[col.token[t]]);
        token.title = `p = ${Math.exp(-q / 20).toPrecision(2)}${q === 255 ? " or less" : ""}`;
      }
    };
    const last = col.offset[i + 1], pause = Math.min(last, col.offset[i] + sps.FIRST_TOKENS);
    write(col.offset[i], pause);
    if (pause < last) {
      const more = part(box, "button", "rest", `Show the other ${last - pause} tokens`);
      more.type = "button";
      more.addEventListener("click", () => { more.remove(); write(pause, last); });
    }
    const left = col.length[i] - (last - col.offset[i]);
    if (left > 0) part(box, "div", "meta", `${left} more tokens are in the store`);
    return box;
  };
  const show = () => {
    const pages = Math.max(1, Math.ceil(state.rows.length / sps.PAGE));
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    const from = state.page * sps.PAGE;
    const list = document.getElementById("list");
    list.replaceChildren(...state.rows.slice(from, from + sps.PAGE).map(card));
    document.getElementById("count").textContent = `${state.rows.length.toLocaleString("en")} of ${data.shown.toLocaleString("en")} trajectories`;
    document.getElementById("page").textContent = `page ${state.page + 1} of ${pages}`;
    document.getElementById("previous").disabled = state.page === 0;
    document.getElementById("next").disabled = state.page >= pages - 1;
  };
  const turn = (by) => {
    state.page += by;
    show();
    document.getElementById("filters").scrollIntoView({ block: "start" });
  };
  let waiting;
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(select, 60); });
  form.addEventListener("reset", () => setTimeout(select));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("previous").addEventListener("click", () => turn(-1));
  document.getElementById("next").addEventListener("click", () => turn(1));
  select();
};
sps.explore(); // before plotly: the explorer does not need it
