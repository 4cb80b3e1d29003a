"use strict";
// Draws the timeline that the page holds as JSON: what is in view, and what is narrower than a few
// pixels as columns, the stronger the more of each is taken. So many boxes are drawn at most.
(() => {
  const MOST = 20000, LANE = 15, GAP = 5, HEAD = 22, AXIS = 24, PADDING = 4, CHARACTER = 5;
  const FAINTEST = 0.25, NARROWEST_VIEW = 100, STEP = 1.6, MOVE = 0.25, DRAG = 4;
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

  const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

  function duration(time) {
    const [size, unit] = UNITS.find(([one]) => Math.abs(time) >= one) || UNITS[3];
    return `${Number((time / size).toPrecision(3))} ${unit}`;
  }

  // In one unit, with as many digits as neighbours need to differ.
  function moment(time, step) {
    const [size, unit] = UNITS.find(([one]) => Math.max(Math.abs(time), step) >= one) || UNITS[3];
    const digits = clamp(Math.ceil(-Math.log10(step / size)), 0, 9);
    return `${(time / size).toFixed(digits)} ${unit}`;
  }

  // Items are four numbers: since the start of the last one, length, name and kind. Of several that
  // were added up the kind is inverted, and how many they are and how long they took follows.
  function unpack(numbers) {
    const lane = { start: [], end: [], reach: [], name: [], kind: [], count: [], busy: [] };
    let at = 0, reach = -Infinity;
    for (let i = 0; i < numbers.length;) {
      at += numbers[i];
      const end = at + numbers[i + 1], kind = numbers[i + 3], several = kind < 0;
      reach = Math.max(reach, end);
      lane.start.push(at);
      lane.end.push(end);
      lane.reach.push(reach);
      lane.name.push(numbers[i + 2]);
      lane.kind.push(several ? ~kind : kind);
      lane.count.push(several ? numbers[i + 4] : 1);
      lane.busy.push(several ? numbers[i + 5] : numbers[i + 1]);
      i += several ? 6 : 4;
    }
    return lane;
  }

  function firstAfter(reach, time) {
    let low = 0, high = reach.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (reach[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  function enliven(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    const told = figure.querySelector(".told"), frame = document.createElement("div");
    const tools = document.createElement("div");
    const whole = [0, Math.max(data.length, NARROWEST_VIEW)];
    const lanes = [], heads = [];
    let height = AXIS, boxes = [], chosen = null, width = 0, gutter = 0, waiting = false;
    let view = data.view;

    for (const group of data.groups) {
      heads.push([group.name, height]);
      height += HEAD;
      for (const row of group.rows) {
        row.lanes.forEach((numbers, depth) => {
          lanes.push({ ...unpack(numbers), y: height, label: depth ? "" : row.name,
            where: `${row.name} of ${group.name}` });
          height += LANE;
        });
        height += GAP;
      }
    }

    const colours = () => {
      const style = getComputedStyle(figure);
      const found = (name) => style.getPropertyValue(`--${name}`).trim();
      return { ink: found("ink"), quiet: found("quiet"), line: found("line"), card: found("card"),
        track: found("track"), lost: found("lost"), of: data.kinds.map(([tone]) => found(tone)) };
    };

    function draw() {
      waiting = false;
      const scaleOfPixels = devicePixelRatio || 1;
      width = frame.clientWidth;
      gutter = clamp(width * 0.16, 70, 190);
      const room = width - gutter, [from, to] = view, scale = room / (to - from);
      const narrow = Math.max(2, Math.ceil(lanes.length * room / MOST));
      canvas.width = width * scaleOfPixels;
      canvas.height = height * scaleOfPixels;
      canvas.style.height = `${height}px`;
      context.setTransform(scaleOfPixels, 0, 0, scaleOfPixels, 0, 0);
      const colour = colours();
      context.clearRect(0, 0, width, height);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      boxes = [];
      axis(colour, from, to, scale, room);
      for (const [name, y] of heads) text(name, PADDING, y + HEAD / 2, width - PADDING, colour.ink, true);
      for (const lane of lanes) {
        context.fillStyle = colour.track;
        context.fillRect(gutter, lane.y + LANE - 2, room, 0.5);
        if (lane.label) text(lane.label, PADDING * 2, lane.y + LANE / 2, gutter - PADDING * 3, colour.quiet);
        drawLane(lane, colour, from, to, scale, narrow);
      }
      if (chosen) outline(colour, from, scale);
      figure.dataset.from = Math.round(from);
      figure.dataset.to = Math.round(to);
      figure.dataset.drawn = boxes.length;
    }

    function text(words, x, y, room, style, strong) {
      let most = Math.floor(room / CHARACTER);
      if (most < 2) return;
      context.fillStyle = style;
      context.font = `${strong ? "600 " : ""}11px system-ui, sans-serif`;
      const cut = () => most < words.length ? `${words.slice(0, most - 1)}…` : words;
      while (most > 2 && context.measureText(cut()).width > room) most = Math.min(most, words.length) - 1;
      context.fillText(cut(), x, y);
    }

    function axis(colour, from, to, scale, room) {
      const rough = (to - from) / Math.max(2, room / 110), power = 10 ** Math.floor(Math.log10(rough));
      const step = power * ([1, 2, 5].find((one) => one * power >= rough) || 10);
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
        const x = gutter + (at - from) * scale;
        context.fillStyle = colour.line;
        context.fillRect(x, AXIS - 6, 1, height);
        text(moment(at, step), x + 3, AXIS / 2 - 3, width - x, colour.quiet);
      }
      for (const [at, name] of data.marks) {
        const x = gutter + (at - from) * scale;
        if (x < gutter || x > width) continue;
        context.fillStyle = colour.lost;
        context.fillRect(x - 1, AXIS - 8, 3, 8);
        boxes.push({ x: x - 3, y: AXIS - 10, w: 7, start: at, end: at, name, count: 1, busy: 0, where: "", kind: "incident" });
      }
    }

    function drawLane(lane, colour, from, to, scale, narrow) {
      let column = null;
      const flush = () => {
        if (!column) return;
        context.globalAlpha = clamp(column.covered / narrow, FAINTEST, 1);
        put(lane, colour, column.at, gutter + column.number * narrow, narrow, column);
        column = null;
      };
      for (let i = firstAfter(lane.reach, from); i < lane.start.length && lane.start[i] < to; i++) {
        if (lane.end[i] <= from) continue;
        const left = Math.max(0, (lane.start[i] - from) * scale);
        const right = Math.min(width - gutter, (lane.end[i] - from) * scale);
        const covered = lane.busy[i] * scale;
        if (right - left >= narrow) {
          flush();
          const share = lane.busy[i] / (lane.end[i] - lane.start[i]);
          context.globalAlpha = lane.count[i] > 1 ? clamp(share, FAINTEST, 1) : 1;
          put(lane, colour, i, gutter + left, right - left, { start: lane.start[i], end: lane.end[i],
            count: lane.count[i], busy: lane.busy[i], longest: lane.end[i] - lane.start[i] });
          continue;
        }
        const number = Math.floor(left / narrow);
        if (column && column.number !== number) flush();
        column ||= { number, at: i, start: lane.start[i], end: lane.end[i], count: 0, busy: 0, covered: 0, longest: 0 };
        column.end = Math.max(column.end, lane.end[i]);
        column.count += lane.count[i];
        column.busy += lane.busy[i];
        column.covered += covered;
        const longest = lane.busy[i] / lane.count[i];
        if (longest > column.longest) { column.longest = longest; column.at = i; }
      }
      flush();
      context.globalAlpha = 1;
    }

    function put(lane, colour, i, x, w, { start, end, count, busy }) {
      const kind = lane.kind[i], name = data.names[lane.name[i]] || data.kinds[kind][1];
      context.fillStyle = colour.of[kind];
      context.fillRect(x, lane.y, Math.max(w - (w > 4 ? 0.7 : 0), 1), LANE - 2);
      context.globalAlpha = 1;
      if (w > 6 * CHARACTER && count === 1) text(name, x + PADDING, lane.y + LANE / 2 - 1, w - 2 * PADDING, colour.ink);
      boxes.push({ x, y: lane.y, w, start, end, name, count, busy, where: lane.where, kind: data.kinds[kind][1] });
    }

    function outline(colour, from, scale) {
      const x = gutter + (chosen.start - from) * scale, w = Math.max(3, (chosen.end - chosen.start) * scale);
      if (x + w < gutter || x > width) return;
      context.strokeStyle = colour.ink;
      context.lineWidth = 2;
      context.strokeRect(Math.max(x, gutter), chosen.y - 1, Math.min(w, width - Math.max(x, gutter)), LANE);
    }

    const later = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(draw);
    };

    function show(from, to) {
      const length = clamp(to - from, NARROWEST_VIEW, whole[1] - whole[0]);
      const start = clamp(from, whole[0], whole[1] - length);
      view = [start, start + length];
      later();
    }

    function zoom(by, share = 0.5) {
      const [from, to] = view, at = from + (to - from) * share, length = (to - from) / by;
      show(at - length * share, at + length * (1 - share));
    }

    const move = (by) => show(view[0] + (view[1] - view[0]) * by, view[1] + (view[1] - view[0]) * by);

    function describe(box) {
      const at = `at +${moment(box.start, Math.max(1, (view[1] - view[0]) / 1e4))}`;
      const of = box.where && `, ${box.where}`;
      return box.count > 1
        ? `${box.count.toLocaleString("en")} things, the longest ${box.name}: ${duration(box.busy)} in ${duration(box.end - box.start)}, ${at}${of}`
        : `${box.name} (${box.kind}): ${duration(box.end - box.start)}, ${at}${of}`;
    }

    const find = (event) => {
      const { left, top } = canvas.getBoundingClientRect();
      const x = event.clientX - left, y = event.clientY - top;
      return boxes.findLast((box) => box.x <= x + 1 && x - 1 <= box.x + box.w && box.y <= y && y < box.y + LANE);
    };
    const shareOf = (event) =>
      clamp((event.clientX - canvas.getBoundingClientRect().left - gutter) / (width - gutter), 0, 1);

    let drag = null;
    canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, view, moved: false }; });
    addEventListener("pointerup", () => { setTimeout(() => { drag = null; }); });
    canvas.addEventListener("pointermove", (event) => {
      if (drag && event.buttons) {
        const by = (drag.x - event.clientX) / (width - gutter) * (drag.view[1] - drag.view[0]);
        drag.moved ||= Math.abs(drag.x - event.clientX) > DRAG;
        if (drag.moved) show(drag.view[0] + by, drag.view[1] + by);
        return;
      }
      const box = find(event);
      canvas.title = box ? describe(box) : "";
    });
    canvas.addEventListener("click", (event) => {
      if (drag && drag.moved) return;
      const box = find(event);
      chosen = box || null;
      told.textContent = box ? describe(box) : "";
      later();
    });
    canvas.addEventListener("dblclick", (event) => {
      const box = find(event);
      if (box) around(box.start, box.end); else zoom(STEP * STEP, shareOf(event));
    });
    // The wheel alone scrolls the page.
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? STEP : 1 / STEP, shareOf(event));
    }, { passive: false });

    function around(start, end) {
      const margin = Math.max((end - start) * 0.1, NARROWEST_VIEW / 2);
      show(start - margin, end + margin);
    }

    const keys = {
      "+": () => zoom(STEP), "=": () => zoom(STEP), w: () => zoom(STEP), "-": () => zoom(1 / STEP), s: () => zoom(1 / STEP),
      ArrowLeft: () => move(-MOVE), a: () => move(-MOVE), ArrowRight: () => move(MOVE), d: () => move(MOVE),
      0: () => show(...whole), Home: () => show(...whole),
    };
    frame.tabIndex = 0;
    frame.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });

    for (const [words, about, act] of [
      ["+", "Closer", () => zoom(STEP)], ["−", "Further away", () => zoom(1 / STEP)],
      ["←", "Earlier", () => move(-MOVE)], ["→", "Later", () => move(MOVE)],
      ["All", "All of it", () => show(...whole)],
    ]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      button.title = about;
      button.addEventListener("click", act);
      tools.append(button);
    }
    tools.className = "tools";
    frame.className = "view";
    frame.setAttribute("role", "application");
    frame.setAttribute("aria-label", "Timeline: + and − zoom, arrows move, 0 shows all");
    frame.append(canvas);
    figure.querySelector(".needs-script").replaceWith(tools, frame);

    // What has a time in a table is shown by a click on its name.
    for (const row of document.querySelectorAll("tr[data-start]")) {
      const cell = row.cells[0], button = document.createElement("button");
      button.type = "button";
      button.className = "shows";
      button.title = "Show it on the timeline";
      button.append(...cell.childNodes);
      button.addEventListener("click", () => {
        const start = Number(row.dataset.start);
        around(start, start + Number(row.dataset.length));
        figure.scrollIntoView();
      });
      cell.append(button);
    }
    addEventListener("resize", later);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
    draw();
  }

  for (const figure of document.querySelectorAll(".timeline")) enliven(figure);
})();
