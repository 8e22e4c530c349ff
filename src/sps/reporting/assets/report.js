// Theme, figures and tables. Text always goes in through textContent.
"use strict";
const sps = {};

sps.json = (id) => JSON.parse(document.getElementById(id).textContent);

sps.say = (text) => {
  const box = document.getElementById("said");
  box.textContent = text;
  box.classList.add("on");
  clearTimeout(sps.quiet);
  sps.quiet = setTimeout(() => box.classList.remove("on"), 1600);
};

// ---- theme
sps.stored = () => { try { return localStorage.getItem("sps-theme"); } catch { return null; } };
sps.system = matchMedia("(prefers-color-scheme: dark)");
sps.theme = () => sps.stored() || (sps.system.matches ? "dark" : "light");
sps.wear = (theme) => {
  document.documentElement.dataset.theme = theme;
  sps.palette = sps.palettes[theme];
  for (const canvas of sps.drawn) sps.draw(canvas);
};

// ---- figures: colours are names until they are drawn
sps.colour = (value) => {
  const found = /^@([a-z]+)(?:\/([\d.]+))?$/.exec(value);
  if (!found || !(found[1] in sps.palette)) return value;
  const hex = sps.palette[found[1]];
  if (found[2] === undefined) return hex;
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${found[2]})`;
};
sps.resolve = (value) => {
  if (typeof value === "string") return value.startsWith("@") ? sps.colour(value) : value;
  if (Array.isArray(value)) return value.map(sps.resolve);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, sps.resolve(v)]));
};
sps.axis = (own) => ({
  gridcolor: sps.palette.grid, linecolor: sps.palette.grid, zerolinecolor: sps.palette.grid,
  zeroline: false, automargin: true, ticks: "", fixedrange: sps.touch, ...own,
  title: { standoff: 8, font: { size: 12.5, color: sps.palette.muted }, ...(own.title || {}) },
  tickfont: { size: 12, color: sps.palette.muted },
});
sps.layout = (own, narrow) => {
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "ui-sans-serif, system-ui, 'Segoe UI', Roboto, Arial, sans-serif", size: 12.5, color: sps.palette.ink },
    margin: { l: 8, r: narrow ? (own.annotations ? 84 : 8) : 14, t: 8, b: 8 }, hovermode: "x unified", dragmode: sps.touch ? false : "zoom",
    hoverlabel: { bgcolor: sps.palette.paper, bordercolor: sps.palette.grid, font: { color: sps.palette.ink, size: 12.5 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: sps.palette.muted, activecolor: sps.palette.ink },
    legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 12.5 } },
    ...own,
  };
  for (const key of new Set(["xaxis", "yaxis", ...Object.keys(own).filter((k) => /^[xy]axis\d*$/.test(k))]))
    layout[key] = sps.axis(own[key] || {});
  return layout;
};
sps.draw = (canvas) => {
  const spec = sps.figures[canvas.dataset.figure];
  if (!spec || typeof Plotly === "undefined") return;
  canvas.classList.remove("waiting");
  const narrow = canvas.clientWidth < 480;
  const options = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", displayModeBar: narrow || sps.touch ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    toImageButtonOptions: { format: "svg", filename: canvas.dataset.figure } };
  const layout = sps.layout(sps.resolve(spec.layout), narrow);
  Plotly.react(canvas, sps.resolve(spec.data), { ...layout, height: spec.height }, options);
  sps.drawn.add(canvas);
};

// ---- tables
sps.cells = (row) => [...row.children].map((cell) => ({
  text: (cell.querySelector("span") || cell).textContent.trim(), low: cell.dataset.low, high: cell.dataset.high }));
sps.csv = (table) => {
  const rows = [...table.rows].map(sps.cells);
  const split = rows[0].map((_, i) => rows.some((r) => r[i] && r[i].low !== undefined));
  const quote = (t) => (/[",\n]/.test(t) ? `"${t.replace(/"/g, '""')}"` : t);
  return rows.map((row, at) => row.flatMap((c, i) => {
    if (!split[i]) return [c.text];
    return at === 0 ? [c.text, `${c.text} low`, `${c.text} high`] : [c.text, c.low ?? "", c.high ?? ""];
  }).map(quote).join(",")).join("\n") + "\n";
};
sps.latex = (table) => {
  const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}" };
  const tex = (t) => t.replace(/[\\~^<>]|[&%$#_{}]/g, (c) => special[c] || `\\${c}`);
  const rows = [...table.rows].map((row) => sps.cells(row).map((c) =>
    c.low === undefined ? tex(c.text) : `${tex(c.text)} {\\scriptsize [${c.low}, ${c.high}]}`).join(" & ") + " \\\\");
  const form = "l" + "r".repeat(table.rows[0].children.length - 1);
  return ["\\begin{tabular}{" + form + "}", "\\toprule", rows[0], "\\midrule", ...rows.slice(1), "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
};
sps.copy = async (text) => {
  try { await navigator.clipboard.writeText(text); } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
};
sps.press = async (event) => {
  const button = event.target.closest("button");
  const table = button?.closest("figure.table")?.querySelector("table");
  if (!table) return;
  if ("all" in button.dataset) { table.classList.add("all"); button.remove(); }
  if (button.dataset.copy) {
    const text = sps[button.dataset.copy](table);
    sps.copied = text;
    await sps.copy(text);
    sps.say(button.dataset.copy === "csv" ? "Copied as CSV" : "Copied as LaTeX");
  }
};

// ---- a page that is served while the run goes on comes again when there is something new
sps.follow = (stamp) => setInterval(async () => {
  try {
    const answer = await fetch("stamp", { cache: "no-store" });
    if (answer.ok && (await answer.text()) !== stamp && !document.querySelector("#filters :focus")) {
      try { sessionStorage.setItem("sps-scroll", String(scrollY)); } catch { /* no storage */ }
      location.reload();
    }
  } catch { /* the server has ended; the page stays */ }
}, 3000);

sps.prepare = () => {
  sps.palettes = sps.json("palettes");
  sps.drawn = new Set();
  sps.touch = matchMedia("(pointer: coarse)").matches;
  sps.wear(sps.theme());
  document.getElementById("theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("sps-theme", next); } catch { /* not kept, but worn */ }
    sps.wear(next);
  });
  sps.system.addEventListener("change", () => { if (!sps.stored()) sps.wear(sps.theme()); });
  document.addEventListener("click", sps.press);
  for (const canvas of document.querySelectorAll(".canvas")) canvas.classList.add("waiting");
};
sps.prepare();
