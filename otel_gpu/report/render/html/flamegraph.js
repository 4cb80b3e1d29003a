"use strict";
// Without this a flame graph is a picture. With it, it is as wide as the screen has room for,
// a click on a box makes that as wide as the picture, and says what it is.
(() => {
  const CHARACTER = 6.7, PADDING = 3, NARROWEST = 0.3, SHORTEST = 3;

  const shorten = (name, room) => room < SHORTEST ? "" :
    name.length <= room ? name : name.slice(0, room - 1) + "\u2026";

  function enliven(svg) {
    const { width: whole, height } = svg.viewBox.baseVal;
    const boxes = [...svg.querySelectorAll("g")].map((g) => ({
      g, rect: g.querySelector("rect"), text: g.querySelector("text"),
      title: g.querySelector("title").textContent,
      x: Number(g.dataset.x), w: Number(g.dataset.w), d: Number(g.dataset.d),
    }));
    if (boxes.length === 0) return;
    const about = document.createElement("p");
    about.setAttribute("aria-live", "polite");
    svg.after(about);
    let chosen = boxes[0];

    function draw() {
      const width = svg.clientWidth || whole;
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      for (const box of boxes) {
        const covers = box.d <= chosen.d && box.x <= chosen.x
          && box.x + box.w >= chosen.x + chosen.w;
        const x = covers ? 0 : ((box.x - chosen.x) / chosen.w) * width;
        const w = covers ? width : (box.w / chosen.w) * width;
        const isSeen = x > -0.01 && x < width && w >= NARROWEST && (covers || box.d > chosen.d);
        box.g.setAttribute("visibility", isSeen ? "visible" : "hidden");
        if (!isSeen) continue;
        box.rect.setAttribute("x", x);
        box.rect.setAttribute("width", w);
        box.text.setAttribute("x", x + PADDING);
        const name = box.text.dataset.name || box.title.split("\n")[0];
        box.text.textContent = shorten(name, Math.floor((w - 2 * PADDING) / CHARACTER));
      }
    }

    for (const box of boxes) {
      box.g.addEventListener("click", () => {
        chosen = box;
        about.textContent = box.title.replace("\n", ": ");
        draw();
      });
    }
    addEventListener("resize", draw);
    draw();
  }

  for (const svg of document.querySelectorAll("svg.flamegraph")) enliven(svg);
})();
