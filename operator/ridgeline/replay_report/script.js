"use strict";
// The page is whole without this: it adds a line under the pointer, the values there, and switches for the lines.
(() => {
  const values = JSON.parse(document.getElementById("values").textContent);
  const frames = [...document.querySelectorAll(".frame")];
  const tip = document.body.appendChild(document.createElement("div"));
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  const off = new Set();

  const clock = (seconds) => {
    const two = (n) => String(n).padStart(2, "0");
    const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  };
  const intervalAt = (place, seconds) => {
    const ends = values.times[place] || [];
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] < seconds) low = middle + 1; else high = middle;
    }
    return low < ends.length ? low : -1;
  };
  const put = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - box.height - 8))}px`;
  };
  const child = (frame, style) => {
    let found = frame.querySelector(`:scope > [data-made="${style}"]`);
    if (!found) {
      found = frame.appendChild(document.createElement("i"));
      found.className = style;
      found.dataset.made = style;
    }
    return found;
  };

  const cross = (share) => {
    for (const frame of frames) {
      const roof = values.roofs[frame.id];
      if (!roof) {
        const line = child(frame, "cross");
        line.hidden = share === null;
        line.style.left = `${100 * share}%`;
        continue;
      }
      const at = share === null ? -1 : intervalAt(roof[0], share * values.end);
      ["prefill", "decode"].forEach((phase, i) => {
        const dot = child(frame, `here ${phase}`), place = at < 0 ? null : roof[1 + i][at];
        dot.hidden = !place;
        if (place) { dot.style.left = `${place[0]}%`; dot.style.top = `${place[1]}%`; }
      });
    }
  };
  const show = (frame, share, x, y) => {
    const seconds = share * values.end, table = document.createElement("table");
    for (const [label, place, texts, switchable] of values.plots[frame.id] || []) {
      const at = intervalAt(place, seconds);
      if (at < 0 || (switchable && off.has(String(place)))) continue;
      const row = table.insertRow();
      row.insertCell().textContent = label;
      row.insertCell().textContent = texts[at];
    }
    tip.replaceChildren(clock(seconds), table);
    put(x, y);
  };
  const leave = () => { tip.hidden = true; cross(null); };

  for (const frame of frames) {
    if (values.roofs[frame.id]) continue;
    let focused = 0.5;
    const move = (share, x, y) => { cross(share); show(frame, share, x, y); };
    frame.addEventListener("pointermove", (event) => {
      if (event.target.closest(".mark")) return;
      const box = frame.getBoundingClientRect();
      focused = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      move(focused, event.clientX, event.clientY);
    });
    frame.addEventListener("pointerleave", leave);
    frame.addEventListener("blur", leave);
    frame.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
      if (event.key === "Escape") leave();
      if (!step || event.target !== frame) return;
      event.preventDefault();
      focused = Math.min(1, Math.max(0, focused + step));
      const box = frame.getBoundingClientRect();
      move(focused, box.left + focused * box.width, box.top);
    });
  }

  for (const mark of document.querySelectorAll(".mark")) {
    const told = mark.title;
    mark.removeAttribute("title"); // else the browser would show it, too
    const tell = () => {
      const box = mark.getBoundingClientRect();
      tip.replaceChildren(told);
      put(box.right, box.bottom);
    };
    mark.addEventListener("pointerenter", tell);
    mark.addEventListener("focus", tell);
    mark.addEventListener("pointerleave", leave);
    mark.addEventListener("blur", leave);
  }

  for (const button of document.querySelectorAll("[data-switch]")) {
    button.addEventListener("click", () => {
      const place = button.dataset.switch, shown = off.has(place);
      if (shown) off.delete(place); else off.add(place);
      button.setAttribute("aria-pressed", String(shown));
      for (const line of document.querySelectorAll(`[data-series="${place}"]`)) line.style.display = shown ? "" : "none";
    });
  }
})();
