// Runs last, when plotly is there: figures are drawn as they come into view, all of them for print.
"use strict";
sps.figures = sps.json("figures");
sps.canvases = [...document.querySelectorAll(".canvas")];
sps.seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) { sps.seen.unobserve(entry.target); sps.draw(entry.target); }
  }
}, { rootMargin: "300px" });
for (const canvas of sps.canvases) sps.seen.observe(canvas);
addEventListener("beforeprint", () => {
  sps.worn = document.documentElement.dataset.theme;
  sps.wear("light");
  for (const canvas of sps.canvases) if (!sps.drawn.has(canvas)) sps.draw(canvas);
});
addEventListener("afterprint", () => sps.wear(sps.worn));
if (document.body.dataset.live) {
  try {
    const y = sessionStorage.getItem("sps-scroll");
    if (y) scrollTo({ top: Number(y), behavior: "instant" });
  } catch { /* no storage */ }
  sps.follow(document.body.dataset.live);
}
document.body.dataset.ready = "yes";
