// The page's behaviour. Every number and every word is made by the server: when a knob is turned, the page
// of the new setting is fetched and its parts take the place of the old ones. Nothing is computed here.
"use strict";

document.documentElement.classList.add("js");

const lab = { running: false, words: {}, guesses: null };
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const PARTS = ["lead", "presets", "problems", "languages", "predict-is", "compare", "focus", "live"];
const PAUSE_MS = 250;

lab.say = (key, values = {}) =>
  Object.entries(values).reduce((text, [name, value]) => text.replaceAll(`{${name}}`, value), lab.words[key]);

document.addEventListener("DOMContentLoaded", () => {
  lab.words = JSON.parse(document.body.dataset.words);
  one("#predictions").hidden = false;
  one("#knobs").addEventListener("input", later(turned));
  one("#knobs").addEventListener("submit", (event) => { event.preventDefault(); turned(); });
  one("#predictions").addEventListener("submit", (event) => { event.preventDefault(); show(true); });
  one("#pass").addEventListener("click", () => show(false));
  document.addEventListener("click", clicked);
  document.addEventListener("keydown", pressed);
  document.addEventListener("input", (event) => { if (event.target.id === "slider") stepTo(Number(event.target.value)); });
  lab.search = location.search;
  window.addEventListener("popstate", () => { if (location.search !== lab.search) location.reload(); });
  remember();
  dress();
  if (location.hash && one("#outcome").contains(one(location.hash))) {
    show(false);
    one(location.hash).scrollIntoView();
  }
});

// What the server's page has for a reader without a script is put to use; again after each change.
function dress() {
  for (const part of all("#results .script")) part.hidden = false;
  for (const said of all(".said")) {
    const guess = lab.guesses?.[said.dataset.policy];
    said.hidden = !guess;
    one("strong", said).textContent = guess ?? "";
    said.classList.toggle("exact", guess === one(".score strong", said.parentElement).textContent.split(" ")[0]);
  }
  if (one("#ticks tbody tr")) stepTo(0, true);
}

// --- The setting -----------------------------------------------------------------------------------------

function later(action) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(action, PAUSE_MS); };
}

function turned() {
  const fields = [...new FormData(one("#knobs"))].filter(([, value]) => value !== "");
  return change(new URLSearchParams(fields).toString());
}

let pending = null;

async function change(query) {
  pending?.abort();
  pending = new AbortController();
  try {
    const answer = await fetch(`/?${query}`, { signal: pending.signal });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!one("#results", fresh)) throw new Error(`HTTP ${answer.status}`);
    replace(fresh);
  } catch (error) {
    if (error.name !== "AbortError") complain(lab.say("lost"));
  }
}

function replace(fresh) {
  const focused = document.activeElement?.id;
  for (const id of PARTS) {
    if (id === "live" && lab.running) continue;
    keepOpen(id, fresh);
    one(`#${id}`).replaceWith(document.adoptNode(one(`#${id}`, fresh)));
  }
  const query = one("#main", fresh).dataset.query;
  one("#main").dataset.query = query;
  history.replaceState(null, "", `/${query && `?${query}`}${location.hash}`);
  lab.search = location.search;
  lab.guesses = null;
  remember();
  dress();
  if (focused) one(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
  one("#announce").textContent = lab.say("updated");
}

function keepOpen(id, fresh) {
  for (const details of all(`#${id} details[open]`)) one(`#${details.id}`, fresh)?.setAttribute("open", "");
}

function complain(message) {
  const line = document.createElement("p");
  line.className = "problem";
  line.textContent = message;
  one("#problems").replaceChildren(line);
}

// --- Predictions -----------------------------------------------------------------------------------------

function show(withGuesses) {
  const inputs = all("#predictions input");
  lab.guesses = withGuesses ? Object.fromEntries(inputs.map((input) => [input.id.slice("predict-".length), input.value])) : null;
  one("#outcome").open = true;
  remember();
  dress();
  one("#compare-title").tabIndex = -1;
  one("#compare-title").focus();
}

function again() {
  one("#outcome").open = false;
  lab.guesses = null;
  remember();
  one("#predictions input").focus();
}

// Whoever has seen the results of a setting need not predict them again when coming back to it.
function remember() {
  const key = one("#main").dataset.query.replace(/&?lang=\w+/, "");
  const open = one("#outcome").open;
  if (open) sessionStorage.setItem(key, JSON.stringify(lab.guesses));
  else if (sessionStorage.getItem(key) && !lab.asked) {
    lab.guesses = JSON.parse(sessionStorage.getItem(key));
    one("#outcome").open = true;
  } else sessionStorage.removeItem(key);
  lab.asked = true;
  one("#ask").hidden = one("#outcome").open;
}

// --- Clicks and keys -------------------------------------------------------------------------------------

function clicked(event) {
  const target = event.target;
  const pick = target.closest("a.pick");
  if (pick && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    const url = new URL(pick.href);
    one("#knob-policy").value = pick.dataset.policy;
    change(url.search.slice(1)).then(() => { if (pick.id.startsWith("pick-")) one("#focus").focus(); });
  } else if (target.dataset.step) move(target.dataset.step);
  else if (target.matches("#focus .column")) stepToTick(target.dataset.tick);
  else if (target.id === "again") again();
}

const KEYS = { ArrowLeft: "previous", ArrowUp: "previous", ArrowRight: "next", ArrowDown: "next", Home: "first", End: "last" };

function pressed(event) {
  const inside = event.target.closest?.("#stepper");
  if (!inside || !KEYS[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  move(KEYS[event.key]);
}

// --- Tick by tick ----------------------------------------------------------------------------------------

const rows = () => all("#ticks tbody tr");

function move(where) {
  const now = one("#ticks tr.now");
  const to = {
    first: rows()[0],
    previous: now.previousElementSibling ?? now,
    next: now.nextElementSibling ?? now,
    last: rows().at(-1),
  }[where];
  stepToTick(to.dataset.tick);
}

function stepToTick(tick) {
  stepTo(rows().findIndex((row) => row.dataset.tick === tick));
}

function stepTo(place, quietly = false) {
  const row = rows()[place];
  if (!row) return;
  mark(all("#ticks tr"), row.dataset.tick);
  mark(all("#focus .column"), row.dataset.tick);
  for (const cell of row.children) one(`.state [data-field="${cell.dataset.field}"]`).textContent = cell.textContent;
  one("#slider").value = place;
  one("#slider").setAttribute("aria-valuetext", row.dataset.said);
  if (!quietly) reveal(one("#focus .column.now"));
  if (!quietly) one("#tick-said").textContent = row.dataset.said;
}

// On a narrow screen the picture is wider than its box.
function reveal(column) {
  const box = column.closest(".wide");
  const [inner, outer] = [column.getBoundingClientRect(), box.getBoundingClientRect()];
  if (inner.left < outer.left || inner.right > outer.right) box.scrollLeft += inner.left - outer.left - outer.width / 2;
}

function mark(elements, tick) {
  for (const each of elements) each.classList.toggle("now", each.dataset.tick === String(tick));
}

lab.mark = mark;
lab.one = one;
lab.all = all;
