// The page's behaviour. Every number and every word is made by the server: when a knob is turned, the page
// of the new setting is fetched and its parts take the place of the old ones. Nothing is computed here.
"use strict";

document.documentElement.classList.add("js");

const lab = { running: false, words: {}, guesses: null, key: null, tick: null };
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const PARTS = ["lead", "printed", "presets", "languages", "predict-is", "compare", "focus", "live"];
const CAN_FOCUS = "a[href], button, input, select, summary, [tabindex]";
const PAUSE_MS = 250;

lab.fill = (text, values = {}) =>
  Object.entries(values).reduce((said, [name, value]) => said.replaceAll(`{${name}}`, shown(value)), text);
lab.say = (key, values) => lab.fill(lab.words[key], values);
const shown = (value) => (typeof value === "number" ? lab.digits(value, 0) : value);
lab.digits = (value, places) => value == null ? "-" : value.toLocaleString(
  document.documentElement.lang, { minimumFractionDigits: places, maximumFractionDigits: places });

document.addEventListener("DOMContentLoaded", () => {
  lab.words = JSON.parse(document.body.dataset.words);
  one("#predictions").hidden = false;
  one("#knobs").addEventListener("input", (event) => { lab.turning = event.target.id; });
  one("#knobs").addEventListener("input", later(turned));
  one("#knobs").addEventListener("focusout", () => { lab.turned = null; });
  one("#knobs").addEventListener("submit", (event) => { event.preventDefault(); turned(); });
  one("#predictions").addEventListener("submit", (event) => { event.preventDefault(); show(true); });
  one("#pass").addEventListener("click", () => show(false));
  document.addEventListener("click", clicked);
  document.addEventListener("keydown", pressed);
  document.addEventListener("input", (event) => { if (event.target.id === "slider") stepTo(Number(event.target.value)); });
  lab.search = location.search;
  window.addEventListener("popstate", () => { if (location.search !== lab.search) change(location.search.slice(1), "back"); });
  recall(true);
  dress();
  const aim = document.getElementById(location.hash.slice(1));
  if (aim && one("#outcome").contains(aim)) {
    if (!one("#outcome").open) show(false);
    aim.scrollIntoView();
  }
});

// What the server's page has for a reader without a script is put to use; again after each change.
function dress() {
  for (const part of all("#results .script")) part.hidden = false;
  for (const said of all(".said")) {
    const guess = lab.guesses?.[said.dataset.policy];
    const exact = Boolean(guess) && Number(guess) === Number(one(".score", said.parentElement).dataset.met);
    said.hidden = !guess;
    one("strong", said).textContent = guess ? String(Number(guess)) : "";
    said.classList.toggle("exact", exact);
    one(".right", said).hidden = !exact;
  }
  stepTo(Math.max(0, rows().findIndex((row) => row.dataset.tick === lab.tick)), true);
  lab.other();
}

// A live run is shown with its own setting, whatever the page's is by now.
lab.other = () => {
  one("#live-other").hidden = one("#live").dataset.run === one("#main").dataset.run;
};

// --- The setting -----------------------------------------------------------------------------------------

function later(action) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(action, PAUSE_MS); };
}

function turned() {
  const fields = [...new FormData(one("#knobs"))].filter(([, value]) => value !== "");
  return change(new URLSearchParams(fields).toString(), "turn");
}

let pending = null;

async function change(query, how) {
  pending?.abort();
  pending = new AbortController();
  try {
    replace(await lab.fetched(query, pending.signal), how);
  } catch (error) {
    if (error.name !== "AbortError") complain(lab.refused(error));
  }
}

lab.fetched = async (query, signal) => {
  const answer = await fetch(`/?${query}`, { signal });
  if (!answer.ok) throw await lab.refusal(answer);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
};

// What the server refuses has a code, for which the page may have words in its own language.
lab.refusal = async (answer) => {
  const told = await answer.json().catch(() => ({}));
  return Object.assign(new Error(`HTTP ${answer.status}`), { told: told.error ?? {} });
};

lab.refused = (error) => {
  if (!error.told) return error instanceof TypeError ? lab.say("lost") : error.message;
  const { code, message, values } = error.told;
  return lab.words[`error_${code}`] ? lab.say(`error_${code}`, values) : message ?? error.message;
};

// `how`: "turn" of a knob, "pick" of a policy, "back" in the history.
function replace(fresh, how) {
  const changed = adjust(fresh, how !== "turn");
  for (const id of PARTS) if (id !== "live" || !lab.running) lab.swap(id, fresh);
  one("#problems").replaceChildren(...all("#problems > *", fresh).map((line) => document.adoptNode(line)));
  Object.assign(one("#main").dataset, { ...one("#main", fresh).dataset });
  note(one("#main").dataset.query, how);
  recall(how === "back");
  dress();
  one("#announce").textContent = changed.length ? lab.say("updated", { changed: changed.join(lab.words.comma) }) : lab.say("same");
}

// The address. Turning one knob on and on is one step in the history, anything else is a step of its own.
function note(query, how) {
  const address = `/${query && `?${query}`}`;
  const on = how === "turn" && lab.turning === lab.turned;
  if (how === "back" || on || address === location.pathname + location.search) history.replaceState(null, "", address + location.hash);
  else history.pushState(null, "", address);
  lab.turned = how === "turn" ? lab.turning : null;
  lab.search = location.search;
}

// The controls stay, what is said of them follows; what differs from before is told.
function adjust(fresh, values) {
  const changed = [];
  for (const control of all("#knobs [name]")) {
    const next = one(`#knobs [name="${control.name}"]`, fresh);
    for (const name of ["aria-invalid", "aria-describedby", "placeholder"]) copy(name, next, control);
    const before = lab.values?.[control.name] ?? control.defaultValue ?? one("[selected]", control)?.value;
    if (next.value !== before && control.labels?.length) changed.push(`${control.labels[0].textContent} ${said(next)}`);
    lab.values = { ...lab.values, [control.name]: next.value };
    if (values || control.type === "hidden") control.value = next.value;
  }
  return changed;
}

const said = (control) => control.selectedOptions?.[0].textContent ?? (control.value || control.placeholder);

function copy(name, from, to) {
  if (from.hasAttribute(name)) to.setAttribute(name, from.getAttribute(name));
  else to.removeAttribute(name);
}

// One part by its fresh form, with what is open in it and what has the focus.
lab.swap = (id, fresh) => {
  const [old, next] = [document.getElementById(id), document.adoptNode(fresh.getElementById(id))];
  const focused = document.activeElement;
  const place = old.contains(focused) ? all(CAN_FOCUS, old).indexOf(focused) : -1;
  for (const details of all("details[open]", old)) one(`#${details.id}`, next)?.setAttribute("open", "");
  old.replaceWith(next);
  for (const part of all(".script", next)) part.hidden = false;
  if (focused === old) next.focus({ preventScroll: true });
  if (place < 0) return;
  const again = focused.id ? document.getElementById(focused.id) : all(CAN_FOCUS, next)[place];
  (again ?? next).focus({ preventScroll: true });
};

function complain(message) {
  const line = document.createElement("p");
  line.className = "problem";
  line.textContent = message;
  one("#problems").replaceChildren(line);
}

lab.complain = complain;

// --- Predictions -----------------------------------------------------------------------------------------

function show(withGuesses) {
  const inputs = all("#predictions input");
  lab.guesses = withGuesses ? Object.fromEntries(inputs.map((input) => [policyOf(input), input.value])) : null;
  remember();
  reveal(true);
  dress();
  one("#compare-title").tabIndex = -1;
  one("#compare-title").focus();
}

function again() {
  sessionStorage.removeItem(lab.key);
  lab.guesses = null;
  reveal(false);
  one("#predictions input").focus();
}

const policyOf = (input) => input.id.slice("predict-".length);

function reveal(open) {
  one("#outcome").open = open;
  one("#outcome").hidden = !open;
  one("#ask").hidden = open;
}

function remember() {
  sessionStorage.setItem(lab.key, JSON.stringify(lab.guesses));
}

// Predictions are of a setting, whatever policy is in focus and whatever the language. Whoever comes back to
// a setting whose results were seen need not predict them again.
function recall(returning) {
  const key = one("#main").dataset.key;
  if (key === lab.key) return;
  lab.key = key;
  const kept = sessionStorage.getItem(key);
  lab.guesses = kept ? JSON.parse(kept) : null;
  if (lab.guesses) for (const input of all("#predictions input")) input.value = lab.guesses[policyOf(input)] ?? "";
  reveal(one("#outcome").open || Boolean(returning && kept));
  if (one("#outcome").open) remember();
}

// --- Clicks and keys -------------------------------------------------------------------------------------

function clicked(event) {
  const target = event.target;
  const pick = target.closest("a.pick");
  if (pick && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    change(new URL(pick.href).search.slice(1), "pick").then(() => { if (pick.id.startsWith("pick-")) one("#focus").focus(); });
  } else if (target.dataset.step) move(target.dataset.step);
  else if (target.matches("#focus .column")) stepToTick(target.dataset.tick);
  else if (target.id === "again") again();
}

const KEYS = { ArrowLeft: "previous", ArrowDown: "previous", ArrowRight: "next", ArrowUp: "next", Home: "first", End: "last" };

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
  if (!quietly) lab.tick = row.dataset.tick;
  mark(all("#ticks tr"), row.dataset.tick);
  mark(all("#focus .column"), row.dataset.tick);
  for (const cell of row.children) one(`.state [data-field="${cell.dataset.field}"]`).textContent = cell.textContent;
  one("#slider").value = place;
  one("#slider").setAttribute("aria-valuetext", row.dataset.said);
  if (!quietly) bring(one("#focus .column.now"));
  if (!quietly) one("#tick-said").textContent = row.dataset.said;
}

// On a narrow screen the picture is wider than its box.
function bring(column) {
  const box = column.closest(".wide");
  const [inner, outer] = [column.getBoundingClientRect(), box.getBoundingClientRect()];
  if (inner.left < outer.left || inner.right > outer.right) box.scrollLeft += inner.left - outer.left - outer.width / 2;
}

function mark(elements, tick) {
  for (const each of elements) each.classList.toggle("now", each.dataset.tick === String(tick));
}

Object.assign(lab, { mark, one, all });
