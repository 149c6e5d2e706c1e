// A run on the real clock: asked for, followed as its events come, and its agreement shown. One that goes on
// already is followed from its start, by whatever page: its events are all told again.
"use strict";

(() => {
  const { one, all } = lab;
  const PHASES = ["queue", "prefill"];
  const OVER = ["agreement", "stopped", "failed"];
  const LOST_MS = 4000;
  let run = null; // { id, source, silence }

  document.addEventListener("click", (event) => {
    if (event.target.getAttribute("aria-disabled") === "true") return;
    if (event.target.id === "run") start();
    if (event.target.id === "stop") stop();
  });
  document.addEventListener("DOMContentLoaded", () => attach().catch((error) => {
    if (lab.running) end("failed", { message: lab.refused(error) });
  }));

  async function start() {
    begin();
    const query = one("#main").dataset.run; // another policy may be in focus before the server has answered
    try {
      await prepare(query);
      follow(await ask("POST", "/api/runs", { query }));
    } catch (error) {
      const followed = error.told?.code === "run_going_on" && (await attach().catch(() => false));
      if (!followed) end("failed", { message: lab.refused(error) });
    }
  }

  // Whether there is one.
  async function attach() {
    const { run: found } = await ask("GET", "/api/runs");
    if (!found || OVER.includes(found.state) || run) return false;
    begin();
    const query = new URLSearchParams(found.query);
    query.delete("lang");
    await prepare(query.toString());
    follow(found);
    if (!one("#outcome").open && !one("#problems").textContent.trim()) lab.complain(lab.say("going", { setting: one("#live").dataset.said }));
    return true;
  }

  // The part of the page that shows a run of this setting, with nothing in it yet.
  async function prepare(query) {
    lab.swap("live", await lab.fetched(`${query}&lang=${one("#knobs [name=lang]").value}`));
    lab.other();
    begin();
  }

  async function ask(method, path, body) {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    if (!answer.ok) throw await lab.refusal(answer);
    return answer.status === 204 ? {} : answer.json();
  }

  function follow(found) {
    const source = new EventSource(`/api/runs/${encodeURIComponent(found.id)}/events`);
    run = { id: found.id, source, silence: null };
    one("#live-tokens").hidden = false;
    able("stop", true);
    const on = (name, action) => source.addEventListener(name, (event) => action(JSON.parse(event.data)));
    on("tick", ticked);
    on("state", ({ state }) => { if (lab.words[state]) tell(state); });
    on("request", measured);
    on("agreement", (data) => { agreed(data); end("done"); });
    on("stopped", () => end("stopped"));
    on("failed", (data) => end("failed", { message: lab.refused({ told: data }) }));
    source.onopen = heard;
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) end("lost");
      else if (run?.source === source) run.silence ??= setTimeout(() => end("lost"), LOST_MS);
    };
  }

  function heard() {
    clearTimeout(run?.silence);
    if (run) run.silence = null;
  }

  function begin() {
    lab.running = true;
    able("run", false);
    tell("starting");
  }

  function end(word, values) {
    heard();
    run?.source.close();
    run = null;
    lab.running = false;
    able("run", true);
    able("stop", false);
    lab.mark(all("#live .column"), "");
    tell(word, values);
  }

  async function stop() {
    able("stop", false);
    tell("stopping");
    try {
      await ask("DELETE", `/api/runs/${encodeURIComponent(run.id)}`);
      if (run) end("stopped");
    } catch (error) {
      if (run) end("failed", { message: lab.refused(error) });
    }
  }

  // Not `disabled`: that would take the focus from whoever has just pressed it.
  function able(id, yes) {
    one(`#${id}`).setAttribute("aria-disabled", String(!yes));
  }

  function tell(word, values) {
    one("#live-status").textContent = lab.say(word, values);
  }

  function ticked(tick) {
    for (const id of tick.emitted) fill(id);
    for (const row of all(".stream tbody tr")) {
      for (const phase of PHASES) row.classList.toggle(phase, tick[phase].includes(row.dataset.id));
    }
    lab.mark(all("#live .column"), tick.tick);
  }

  const rowOf = (id) => one(`.stream tr[data-id="${CSS.escape(id)}"]`);

  function measured(found) {
    const row = rowOf(found.id);
    if (row) one(".measured", row).textContent = found.e2e_ms === null ? lab.say("unfinished") : lab.digits(found.e2e_ms, 1);
  }

  function fill(id) {
    const row = rowOf(id);
    if (!row) return;
    one(".slots i:not(.here)", row)?.classList.add("here");
    one(".count", row).textContent = lab.say("of", { met: all("i.here", row).length, n: all("i", row).length });
  }

  const spread = (values) => lab.say("ms", { values: values.map((value) => lab.digits(value, 2)).join(" / ") });

  function agreed({ agreement, text }) {
    const { verdict, schedule, timing } = agreement;
    const tokens = timing.tokens;
    const said = {
      verdict: lab.words[verdict],
      requests: `${schedule.requests_equal} / ${schedule.requests}`,
      ticks: `${schedule.ticks_equal} / ${schedule.ticks}`,
      stamps: tokens ? spread([tokens.p50, tokens.p95, tokens.max]) : "-",
      late: spread([agreement.tick_late_max_ms, agreement.client_lag_max_ms]),
    };
    for (const [key, value] of Object.entries(said)) one(`[data-agree="${key}"]`).textContent = value;
    one('[data-agree="verdict"]').className = verdict;
    one("#reasons").replaceChildren(...agreement.reasons.map((reason) => {
      const item = document.createElement("li");
      item.textContent = reason;
      return item;
    }));
    one("#why-verdict").hidden = agreement.reasons.length === 0;
    one("#agree-text pre").textContent = text;
    one("#agreement").hidden = false;
  }
})();
