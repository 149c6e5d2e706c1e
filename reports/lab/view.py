"""What the lab page shows, from the same dictionaries as its API: words, figures as text, pictures. Pure.

Nothing is measured or simulated here. The page's script asks for the page again when a knob is turned, so
that every number and every word of it is made in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup

from ledgers.settings import DEFAULT_PRESET, PRESETS
from reports.lab.chart import LARGE, SMALL, Frame, Size, dotted, draw, frame, names
from reports.lab.misses import misses
from reports.lab.setting import MOST_CHARS, parse
from reports.lab.words import LANGUAGES, script_words, words
from reports.tables import DASH, ms, number
from reports.text import marked

MOST_LISTED = 600  # ticks, which are also those to step through
NO_KNOBS = ("preset", "lang")  # which are links
BOUNDS = {"slo": "E2E", "ttft": "TTFT", "tpot": "TPOT"}
REQUEST_COLUMNS = ("id", "arrival", "prompt", "output", "queue_delay", "ttft", "tpot", "e2e", "slo")
TICK_COLUMNS = (
    "tick",
    "time",
    "queue",
    "prefill",
    "ready",
    "emitted",
    "kv_reserved",
    "kv_cached",
    "events",
)
FIGURES: dict[str, str | tuple[str, str]] = {
    "attainment": "attainment",
    "goodput": "goodput_rps",
    "throughput": "throughput_rps",
    "queue_p50": ("queue_delay_ms", "p50"),
    "ttft_p50": ("ttft_ms", "p50"),
    "ttft_p95": ("ttft_ms", "p95"),
    "tpot_p50": ("tpot_ms", "p50"),
    "e2e_p50": ("e2e_ms", "p50"),
    "e2e_p95": ("e2e_ms", "p95"),
    "unfinished": "unfinished",
    "kv_peak": "kv_peak_tokens",
}


class Link(NamedTuple):
    key: str
    name: str
    hint: str
    href: str
    current: bool


class Outcome(NamedTuple):
    """One policy in the comparison."""

    key: str
    name: str
    what: str
    met: int
    of: str
    why: str
    svg: Markup
    href: str


class Refused(NamedTuple):
    """What of the query could not be used."""

    field: str
    text: str


class TickLine(NamedTuple):
    tick: int
    cells: Sequence[tuple[str, str]]  # (name, text)
    said: str


class Waiting(NamedTuple):
    """A request that waited, for one reason: in how many ticks, and for whom."""

    id: str
    ticks: int
    why: str
    behind: str


class LiveRow(NamedTuple):
    id: str
    e2e: str
    tokens: int


def page(
    experiment: Mapping[str, Any],
    knobs: Sequence[Mapping[str, Any]],
    lang: str = "en",
    problems: Iterable[Any] = (),
    query: str = "",
) -> dict[str, Any]:
    """All that the template asks for. `problems` are fields of the `query` that could not be used."""
    t, of = words(lang), frame(experiment, experiment["policies"])
    controls = {knob["name"]: knob for knob in knobs}
    refused = [Refused(problem.field or "", _problem(problem, controls, t)) for problem in problems]
    based = _based(experiment["setting"], query)
    return {
        "t": t,
        "lang": lang,
        "script_words": script_words(lang),
        "preset": based["preset"],
        "query": urlencode(based),
        "run_query": _without(experiment["query"], "lang"),
        "key": _without(experiment["query"], "lang", "policy"),
        "said": described(based, experiment["setting"], t),
        "languages": [
            Link(key, name, "", _with(urlencode(based), lang=key), key == lang)
            for key, name in LANGUAGES.items()
        ],
        "presets": [_preset(name, experiment["setting"], lang) for name in PRESETS],
        "knobs": [
            _knob(knob, t, _usual(based, experiment["setting"]), refused)
            for name, knob in controls.items()
            if name not in NO_KNOBS
        ],
        "problems": refused,
        "slo": _slo(experiment["setting"]),
        "budget": f"{of.budget:,}",
        **_compared(experiment, of, t, urlencode(based)),
        **_in_focus(experiment, of, t, urlencode(based)),
        "request_columns": REQUEST_COLUMNS,
        "tick_columns": TICK_COLUMNS,
    }


def _compared(experiment: Mapping[str, Any], of: Frame, t: Mapping[str, str], query: str) -> dict[str, Any]:
    policies = experiment["policies"]
    figures = list(_figures(policies, t))
    signs = "".join(cell for _, cells in figures for cell in cells)
    return {
        "count": len(policies[0]["requests"]),
        "outcomes": [_outcome(policy, of, t, query) for policy in policies],
        "dotted": dotted(of, SMALL),
        "window": of.window_shown,
        "figures": figures,
        "marks": [t[name] for name, sign in (("dagger", "†"), ("star", "*")) if sign in signs],
    }


def _in_focus(experiment: Mapping[str, Any], of: Frame, t: Mapping[str, str], query: str) -> dict[str, Any]:
    wanted = experiment["setting"]["policy"]
    policy = next(each for each in experiment["policies"] if each["policy"] == wanted)
    requests, shown = policy["requests"], [tick for tick in policy["ticks"] if _anything(tick)]
    listed, alone = [tick["tick"] for tick in shown[:MOST_LISTED]], frame(experiment, [policy])
    return {
        "focus": _outcome(policy, of, t, query),
        "focus_links": [
            Link(
                each["policy"],
                t[f"policy_{each['policy']}"],
                "",
                _with(query, policy=each["policy"]),
                each is policy,
            )
            for each in experiment["policies"]
        ],
        "focus_svg": _picture(policy, alone, t, LARGE, listed),
        "focus_names": Markup(names(requests, alone, LARGE)),
        "focus_dotted": dotted(alone, LARGE),
        "focus_window": alone.window_shown,
        "live_svg": _picture(policy, alone, t, SMALL, listed),
        "requests": [_request(request, experiment["setting"], t) for request in requests],
        "row_dagger": any(request["censored"] for request in requests),
        "ticks": [_tick(tick, of, t) for tick in shown[:MOST_LISTED]],
        "ticks_cut": ""
        if len(shown) <= MOST_LISTED
        else t["ticks_cut"].format(shown=MOST_LISTED, all=len(shown)),
        "waits": list(waitings(policy, t)),
        "live_rows": [LiveRow(each["id"], _ms(each["e2e_ms"]), each["output_tokens"]) for each in requests],
    }


def _based(setting: Mapping[str, Any], query: str) -> dict[str, str]:
    """The setting as a query that keeps the preset it began with, so that an emptied knob goes back to it."""
    given = [value for name, value in parse_qsl(query[:MOST_CHARS]) if name == "preset" and value in PRESETS]
    preset: str = setting["preset"] or (given[0] if given else DEFAULT_PRESET)
    usual = parse(f"preset={preset}")[0].to_json()
    changed = {name: value for name, value in setting.items() if value != usual[name] and name != "preset"}
    return {"preset": preset, **{name: _plain(value) for name, value in changed.items() if value is not None}}


def _usual(based: Mapping[str, str], setting: Mapping[str, Any]) -> dict[str, Any]:
    """What an emptied knob means."""
    usual = parse(f"preset={based['preset']}&hardware={setting['hardware']}")[0]
    return {**usual.to_json(), "tick": usual.tick_ms / 1000}


def described(based: Mapping[str, str], setting: Mapping[str, Any], t: Mapping[str, str]) -> str:
    """The setting in words: its preset, what differs from it, its policy."""
    knobs = (name for name in based if name not in (*NO_KNOBS, "policy"))
    changed = [f"{t[f'knob_{name}']} {t.get(f'{name}_{based[name]}', based[name])}" for name in knobs]
    return t["comma"].join([t[f"preset_{based['preset']}"], *changed, t[f"policy_{setting['policy']}"]])


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def _without(query: str, *fields: str) -> str:
    return urlencode([(name, value) for name, value in parse_qsl(query) if name not in fields])


def _slo(setting: Mapping[str, Any]) -> str:
    given = {name: setting[key] for key, name in BOUNDS.items() if setting[key] is not None}
    return ", ".join(f"{name} {bound:,g} ms" for name, bound in given.items())


def _preset(name: str, setting: Mapping[str, Any], lang: str) -> Link:
    """With another policy in focus than now the preset would no longer be what it is called."""
    query = urlencode({"preset": name, "policy": setting["policy"], "lang": lang})
    current = setting["preset"] == name
    return Link(name, words(lang)[f"preset_{name}"], words(lang)[f"preset_{name}_is"], f"/?{query}", current)


def _knob(
    knob: Mapping[str, Any], t: Mapping[str, str], usual: Mapping[str, Any], refused: Sequence[Refused]
) -> dict[str, Any]:
    name, value = knob["name"], knob["value"]
    found = {"name": name, "label": t[f"knob_{name}"], "hint": t[f"knob_{name}_is"], "value": value}
    found["refused"] = any(each.field == name for each in refused)
    if knob["kind"] == "choice":
        return found | {"choices": [(key, t[f"{name}_{key}"]) for key in knob["choices"]]}
    low = knob["min"] if knob["min"] >= knob["step"] else 0  # else the arrows would go in odd steps
    return found | {
        "choices": None,
        "value": "" if value is None else f"{value:g}",
        "min": f"{low:g}",
        "max": f"{knob['max']:g}",
        "step": f"{knob['step']:g}",
        "placeholder": t["no_bound"] if usual[name] is None else _plain(usual[name]),
    }


def _problem(problem: Any, controls: Mapping[str, Mapping[str, Any]], t: Mapping[str, str]) -> str:
    """In the page's own language."""
    knob = controls.get(problem.field or "")
    label = t.get(f"knob_{problem.field}", problem.field)
    if knob is None:
        return t["problem"].format(message=told(problem, t))
    if problem.code == "given_twice":
        return t["problem_twice"].format(field=label)
    if knob["kind"] == "choice":
        return t["problem_choice"].format(field=label, choices=", ".join(knob["choices"]))
    if problem.code == "too_many_decimals":
        return t["problem_whole" if knob["whole"] else "problem_decimals"].format(field=label)
    return t["problem_number"].format(field=label, low=f"{knob['min']:,g}", high=f"{knob['max']:,g}")


def told(problem: Any, t: Mapping[str, str]) -> str:
    """What the server says, in the language of the page where its code is one of the catalogue's."""
    text = t.get(f"js_error_{problem.code}")
    values = {
        name: f"{value:,}" if isinstance(value, int) else value for name, value in problem.values.items()
    }
    return problem.message if text is None else text.format(**values)


def _with(query: str, **changes: str) -> str:
    return "/?" + urlencode(dict(parse_qsl(query)) | changes)


def _anything(tick: Mapping[str, Any]) -> bool:
    return bool(tick["queue"] or tick["prefill"] or tick["ready"] or tick["emitted"] or tick["events"])


def _outcome(policy: Mapping[str, Any], of: Frame, t: Mapping[str, str], query: str) -> Outcome:
    key, requests = policy["policy"], policy["requests"]
    return Outcome(
        key=key,
        name=t[f"policy_{key}"],
        what=t[f"policy_{key}_is"],
        met=_met(requests),
        of=t["of"].format(met=_met(requests), n=len(requests)),
        why=why(policy, of.setting, t),
        svg=_picture(policy, of, t, SMALL),
        href=_with(query, policy=key) + "#focus",
    )


def _met(requests: Iterable[Mapping[str, Any]]) -> int:
    return sum(request["met_slo"] is True for request in requests)


def why(policy: Mapping[str, Any], setting: Mapping[str, Any], t: Mapping[str, str]) -> str:
    """How many missed the SLO and by what, what was waited for most often, and who waited longest."""
    requests = policy["requests"]
    parts = [_missed(requests, setting, t) or t["why_all"].format(n=len(requests))]
    causes = Counter(wait["why"] for tick in policy["ticks"] for wait in tick["waits"])
    if not causes:
        return t["joint"].join([*parts, t["why_none"]])
    (cause, part), total = causes.most_common(1)[0], causes.total()
    longest = max(requests, key=lambda request: request["queue_delay_ms"] or 0)
    waited = "why_wait_all" if part == total else "why_wait"
    parts += [
        t[waited].format(
            part=f"{part:,}",
            total=t["request_tick" if total == 1 else "request_ticks"].format(n=f"{total:,}"),
            reason=t[f"reason_{cause}"],
        ),
        t["why_longest"].format(id=longest["id"], ms=_ms(longest["queue_delay_ms"])),
    ]
    return t["joint"].join(parts)


def _missed(requests: Sequence[Mapping[str, Any]], setting: Mapping[str, Any], t: Mapping[str, str]) -> str:
    """A request may break several bounds."""
    missed = len(requests) - _met(requests)
    causes = Counter(cause for request in requests for cause in misses(request, setting))
    if not missed:
        return ""
    if set(causes) <= {"slo"}:
        return t["why_missed"].format(missed=missed)
    said = t["comma"].join(t[f"why_{cause}"].format(n=count) for cause, count in causes.items())
    return t["why_missed_by"].format(missed=missed, causes=said)


def _picture(
    policy: Mapping[str, Any],
    of: Frame,
    t: Mapping[str, str],
    size: Size,
    columns: Sequence[int] = (),
) -> Markup:
    requests = policy["requests"]
    name = t[f"policy_{policy['policy']}"]
    title = t["chart_title"].format(policy=name, met=_met(requests), n=len(requests))
    text = t["chart_text"].format(
        n=len(requests),
        end=f"{of.end_s:.1f}",
        peak=max((tick["kv_cached"] for tick in policy["ticks"]), default=0),
        budget=f"{of.budget:,}",
    )
    return Markup(draw(policy, of, size, t, (title, text), columns))


def _figures(
    policies: Sequence[Mapping[str, Any]], t: Mapping[str, str]
) -> Iterator[tuple[str, Sequence[str]]]:
    for name, key in FIGURES.items():
        yield t[f"fig_{name}"], [_figure(policy["summary"], key) for policy in policies]
    yield t["fig_makespan"], [number(policy["figures"]["makespan_s"], 1) for policy in policies]


def _figure(summary: Mapping[str, Any], key: str | tuple[str, str]) -> str:
    if isinstance(key, tuple):
        found = summary[key[0]]
        if found is None:
            return DASH
        signs = marked(dict(summary), key[0], key[1], found).removeprefix(ms(found[key[1]]))
        return _ms(found[key[1]]) + signs
    value = summary[key]
    if key == "attainment" and value is not None:
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else number(value)


def _ms(value: float | None) -> str:
    """All with the same digits, so that the figures of a row can be compared by eye."""
    return DASH if value is None else f"{value:,.1f}"


def _request(request: Mapping[str, Any], setting: Mapping[str, Any], t: Mapping[str, str]) -> Sequence[str]:
    slo = {None: DASH, True: t["slo_met"], False: t["slo_missed"]}[request["met_slo"]]
    if broken := misses(request, setting):
        slo = t["slo_missed_by"].format(bounds=t["comma"].join(t[f"bound_{name}"] for name in broken))
    times = [_ms(request[name]) for name in ("queue_delay_ms", "ttft_ms", "tpot_ms", "e2e_ms")]
    return [
        request["id"],
        _ms(request["arrival_ms"]),
        str(request["prompt_tokens"]),
        str(request["output_tokens"]),
        *times,
        f"{slo} †" if request["censored"] else slo,
    ]


def _tick(tick: Mapping[str, Any], of: Frame, t: Mapping[str, str]) -> TickLine:
    events = happened(tick["events"], t)
    names = {name: " ".join(tick[name]) or t["nobody"] for name in ("queue", "prefill", "ready", "emitted")}
    cells = {
        "tick": str(tick["tick"]),
        "time": f"{tick['time_ms']:,.0f} ms",
        **names,
        "kv_reserved": str(tick["kv_reserved"]),
        "kv_cached": str(tick["kv_cached"]),
        "events": events,
    }
    said = t["tick_said"].format(
        tick=tick["tick"],
        ms=f"{tick['time_ms']:,.0f}",
        events=events,
        queue=len(tick["queue"]),
        cached=tick["kv_cached"],
        budget=f"{of.budget:,}",
    )
    return TickLine(tick["tick"], list(cells.items()), said)


def happened(events: Sequence[str], t: Mapping[str, str]) -> str:
    """The kinds in order of their first event, each with its requests."""
    found: dict[str, list[str]] = {}
    for kind, id in (event.split(" ", 1) for event in events):
        found.setdefault(kind, []).append(id)
    said = (t[f"event_{kind}"].format(ids=" ".join(ids)) for kind, ids in found.items())
    return t["then"].join(said) or t["nothing"]


def waitings(policy: Mapping[str, Any], t: Mapping[str, str]) -> Iterator[Waiting]:
    """In order of the requests; for each reason those who were waited for, the longest first."""
    ticks: Counter[tuple[str, str]] = Counter()
    behind: dict[tuple[str, str], Counter[str]] = {}
    for wait in (wait for tick in policy["ticks"] for wait in tick["waits"]):
        key = wait["id"], wait["why"]
        ticks[key] += 1
        behind.setdefault(key, Counter()).update(wait["for"])
    order = {request["id"]: place for place, request in enumerate(policy["requests"])}
    for id, cause in sorted(ticks, key=lambda key: (order[key[0]], -ticks[key])):
        named = " ".join(f"{other} ({count})" for other, count in behind[id, cause].most_common())
        yield Waiting(id, ticks[id, cause], t[f"wait_{cause}"], named or t["nobody"])
