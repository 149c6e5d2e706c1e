// A run on the real clock: asked for, followed as its events come, and its agreement shown.
"use strict";

(() => {
  const { one, all } = lab;
  const PHASES = ["queue", "prefill"];
  let run = null; // { id, source }

  document.addEventListener("click", (event) => {
    if (event.target.id === "run") start();
    if (event.target.id === "stop") stop();
  });

  async function start() {
    begin();
    try {
      const answer = await ask("POST", "/api/runs", { query: one("#main").dataset.query });
      run = { id: answer.id, source: new EventSource(`/api/runs/${encodeURIComponent(answer.id)}/events`) };
    } catch (error) {
      return end("failed", { message: error.message });
    }
    follow(run.source);
  }

  async function ask(method, path, body) {
    const answer = await fetch(path, {
      method,
      headers: { "Content-Type": "application/json" },
      body: body && JSON.stringify(body),
    });
    const found = answer.status === 204 ? {} : await answer.json();
    if (!answer.ok) throw new Error(found.error?.message ?? `HTTP ${answer.status}`);
    return found;
  }

  function follow(source) {
    const on = (name, action) => source.addEventListener(name, (event) => action(JSON.parse(event.data)));
    on("tick", ticked);
    on("state", stated);
    on("request", measured);
    on("agreement", (found) => { agreed(found); end("done"); });
    on("failed", (found) => end("failed", found));
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) end("lost"); };
  }

  function begin() {
    lab.running = true;
    one("#run").disabled = true;
    one("#stop").disabled = false;
    one("#live-tokens").hidden = false;
    one("#agreement").hidden = true;
    for (const slot of all(".slots i.here")) slot.classList.remove("here");
    for (const row of all(".stream tbody tr")) row.className = one(".measured", row).textContent = "";
    tell("starting");
  }

  function end(word, values = {}) {
    run?.source.close();
    run = null;
    lab.running = false;
    one("#run").disabled = false;
    one("#stop").disabled = true;
    lab.mark(all("#live .column"), "");
    tell(word, values);
  }

  async function stop() {
    if (!run) return;
    one("#stop").disabled = true;
    try {
      await ask("DELETE", `/api/runs/${encodeURIComponent(run.id)}`);
      end("stopped");
    } catch (error) {
      end("failed", { message: error.message });
    }
  }

  function tell(word, values) {
    one("#live-status").textContent = lab.say(word, values);
  }

  function stated(found) {
    if (found.state === "stopped") end("stopped");
    else if (lab.words[found.state]) tell(found.state);
  }

  function ticked(tick) {
    for (const id of tick.emitted) fill(id);
    for (const row of all(".stream tbody tr")) {
      for (const phase of PHASES) row.classList.toggle(phase, tick[phase].includes(row.dataset.id));
    }
    lab.mark(all("#live .column"), tick.tick);
  }

  function measured(found) {
    const row = one(`.stream tr[data-id="${CSS.escape(found.id)}"]`);
    if (row) one(".measured", row).textContent = found.e2e_ms === null ? found.outcome : digits(found.e2e_ms, 1);
  }

  function fill(id) {
    const row = one(`.stream tr[data-id="${CSS.escape(id)}"]`);
    one(".slots i:not(.here)", row ?? document.createElement("p"))?.classList.add("here");
  }

  const digits = (value, most = 2) => (value == null ? "-" : value.toLocaleString(document.documentElement.lang, { maximumFractionDigits: most }));
  const spread = (values) => lab.say("ms", { values: values.map((value) => digits(value)).join(" / ") });

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
    one("#agree-text pre").textContent = text;
    one("#agreement").hidden = false;
  }
})();
