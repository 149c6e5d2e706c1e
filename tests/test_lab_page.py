"""What the lab page says: the same in both languages, and of the numbers only what the simulator says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ledgers.settings import PRESETS
from reports.lab.experiment import experiment
from reports.lab.misses import misses
from reports.lab.setting import Setting, knobs, parse
from reports.lab.view import happened, page, why
from reports.lab.words import CATALOGUE, LANGUAGES, words

LAB = Path(__file__).parent.parent / "reports" / "lab"
GOLDEN = Path(__file__).parent / "data" / "golden"
TEMPLATES = ("index.html", "parts.html")
SPOKEN = ("alt", "aria-label", "placeholder", "title", "value")
POLICIES = ("immediate", "static", "continuous", "chunked")


def shown(query: str, lang: str = "en") -> dict[str, Any]:
    setting, problems = parse(query)
    return page(experiment(setting), knobs(setting), lang, problems, query)


def rendered(query: str, lang: str = "en") -> str:
    templates = Environment(
        loader=FileSystemLoader(LAB / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("index.html").render(page=shown(query, lang))


def test_every_language_has_every_text() -> None:
    """The same keys with the same places to fill in, and none empty."""
    english = CATALOGUE["en"]
    for lang in LANGUAGES:
        found = CATALOGUE[lang]
        assert found.keys() == english.keys()
        assert [key for key in found if not found[key] and key != "joint"] == []
        for key, text in found.items():
            assert _fields(text) == _fields(english[key]), (lang, key)


def _fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_chinese_is_chinese() -> None:
    """A text left in English would have no Chinese character; names of figures and machines may."""
    untranslated = [key for key, text in words("zh").items() if not re.search("[\u4e00-\u9fff]", text)]
    names = {"lang", "joint", "comma", "then", "of", "token", "kv", "knob_tick", "slider"}
    names |= {"js_ms", "js_of", "js_comma"}
    assert {key for key in untranslated if not key.startswith(("col_", "fig_", "bound_"))} <= names


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_no_words_of_its_own(name: str) -> None:
    """Between tags, and in attributes that are read out, there are only expressions."""
    bare = _Bare()
    bare.feed(
        re.sub(r"\{%.*?%\}", "", (LAB / "templates" / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    )
    assert bare.found == []


class _Bare(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in SPOKEN:
                self.handle_data(value or "")

    def handle_data(self, data: str) -> None:
        if re.search(r"\w", re.sub(r"\{\{.*?\}\}", "", data, flags=re.DOTALL)) and data != "0":
            self.found.append(data)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_style_and_no_script_stands_in_the_page(lang: str) -> None:
    """Its content-security policy would block them."""
    html = rendered("preset=overload", lang)
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=\"/static/)|javascript:", html)
    assert "{" not in re.sub(r'data-words="[^"]*"', "", html), "every place is filled in"


@pytest.mark.parametrize("preset", ["steady", "head-of-line", "busy", "overload"])
def test_the_outcome_is_that_of_the_worked_examples(preset: str) -> None:
    """Who met the SLO, the KV peak, and † just where not all completed."""
    found = shown(f"preset={preset}")
    figures = dict(found["figures"])
    for place, policy in enumerate(POLICIES):
        known = json.loads((GOLDEN / f"toy_{preset.replace('-', '_')}_{policy}.json").read_text())[
            "aggregates"
        ]
        assert found["outcomes"][place].of == f"{known['slo_pass']} of 16"
        assert figures["KV peak, tokens"][place] == str(known["kv_peak_tokens"])
        assert ("†" in figures["E2E p50, ms"][place]) is known["censored"]


def test_every_part_of_the_setting_is_on_the_page() -> None:
    """What can be asked for can be turned, or is a link."""
    found = shown("preset=busy")
    assert {knob["name"] for knob in found["knobs"]} == {*Setting._fields} - {"lang"}
    assert [preset.key for preset in found["presets"]] == [*PRESETS]


def test_a_picture_shows_each_token_and_each_tick() -> None:
    """63 answers' tokens, and a column for every tick that can be stepped to."""
    found = shown("preset=busy")
    tokens = re.search(r'<path d="([^"]*)" class="tokens"', found["focus_svg"])
    assert tokens is not None
    assert tokens[1].count("M") == 63
    assert 'class="tokens' not in shown("preset=busy&tick=0.02&rate=1")["focus_svg"], "they would touch"
    assert found["focus_svg"].count('class="column"') == len(found["ticks"])


def test_a_large_budget_is_said_and_not_drawn() -> None:
    """200,000 tokens beside a few dozen would make the curve a flat line."""
    found = shown("preset=busy&hardware=medium")
    assert "budget 200,000, above the scale" in found["focus_svg"]
    assert 'class="budget"' not in found["focus_svg"]


SLO = {"ttft": 400.0, "tpot": 100.0, "slo": 900.0}
LATE = {"ttft_ms": 400.5, "tpot_ms": 100.0, "e2e_ms": 900.1, "censored": True}


def test_a_miss_names_its_bounds() -> None:
    """What is at its bound is met; so is what has none."""
    late = {**LATE, "met_slo": False}
    assert misses(late, SLO) == ["ttft", "slo", "window"]
    assert misses({**late, "censored": False}, {**SLO, "ttft": None}) == ["slo"]
    assert misses({**late, "met_slo": True}, SLO) == []


def test_every_miss_has_a_reason() -> None:
    """In all presets, with a TTFT and a TPOT bound as well."""
    for preset in ("steady", "head-of-line", "busy", "overload"):
        found = experiment(parse(f"preset={preset}&ttft=400&tpot=120")[0])
        for request in (request for policy in found["policies"] for request in policy["requests"]):
            assert bool(misses(request, found["setting"])) is not request["met_slo"]


def test_a_bar_ends_at_the_last_token() -> None:
    """R01 is done at 1.5 s, before its bound of 1.55 s: its bar ends before the line as well."""
    svg = shown("preset=head-of-line")["focus_svg"]
    row = svg[svg.index(">R01</text>") :]
    bar = re.search(r"R01: Decode from \S+ to (\S+) s", row)
    assert bar is not None
    assert bar[1] == "1.50"


def test_the_windows_end_is_drawn_where_it_is_early() -> None:
    """Under `immediate` some are done after it; under `continuous` all are, long before."""
    found = shown("preset=busy")
    assert 'class="window-end"' in found["outcomes"][0].svg
    assert "9 not done when the window closed" in found["outcomes"][0].why
    assert not found["focus_window"], "its own picture ends before"


def test_an_emptied_knob_goes_back_to_its_preset() -> None:
    """Which the address keeps, and the knob shows in grey."""
    found = shown("preset=busy&rate=9&ttft=450", "en")
    assert found["query"] == "preset=busy&rate=9&ttft=450"
    grey = {knob["name"]: knob["placeholder"] for knob in found["knobs"] if not knob["choices"]}
    assert grey == {
        "rate": "8", "batch": "4", "wait": "0.2", "chunk": "8", "slo": "1550", "ttft": "no bound",
        "tpot": "no bound", "tick": "0.1",
    }  # fmt: skip
    assert shown("preset=busy&rate=&ttft=")["query"] == "preset=busy"


def test_why_names_the_cause_and_who_waited_longest() -> None:
    """By request and tick, whatever the number of those who were waited for."""
    policy: dict[str, Any] = {
        "requests": [
            {**LATE, "id": "R01", "met_slo": True, "queue_delay_ms": 0.0},
            {**LATE, "id": "R02", "met_slo": False, "queue_delay_ms": 1210.0},
        ],
        "ticks": [
            {"waits": [{"id": "R02", "why": "kv", "for": ["R01"]}]},
            {"waits": [{"id": "R02", "why": "kv", "for": ["R01"]}, {"id": "R01", "why": "slots", "for": []}]},
        ],
    }
    assert why(policy, SLO, words("en")) == (
        "1 missed the SLO: 1 by TTFT, 1 by E2E, 1 not done when the window closed. "
        "Waiting came to 3 request-ticks, most often because it did not fit into the KV cache beside what "
        "others held (2). R02 queued longest, for 1,210.0 ms."
    )
    policy["ticks"] = policy["ticks"][:1]
    assert "came to 1 request-tick, because" in why(policy, SLO, words("en"))


def test_events_of_a_kind_are_told_together() -> None:
    assert happened(["arrive R01", "arrive R02", "token R03"], words("en")) == "R01 R02 arrive; token for R03"
    assert happened([], words("en")) == "nothing changes"


def test_what_cannot_be_used_is_said_in_the_language_of_the_page() -> None:
    """With the field's own name and its bounds; hostile text stays text."""
    said = {
        "rate=0": "Arrival rate: that is not a number from 0.1 to 100. The default is used.",
        "rate=1.2345": "Arrival rate: that has more than three decimals. The default is used.",
        "batch=2.5": "Batch size: that is not a whole number. The default is used.",
        "rate=2&rate=3": "Arrival rate: it is given twice. The first one is used.",
    }
    for query, text in said.items():
        assert [problem.text for problem in shown(query)["problems"]] == [text]
        assert shown(query, "zh")["problems"][0].text.isascii() is False
    assert 'aria-invalid="true" aria-describedby="knob-rate-is problem-rate"' in rendered("rate=0")
    html = rendered("hardware=%3Cscript%3Ealert(1)%3C/script%3E&%3Cimg%3E=1")
    assert "<script>alert" not in html
    assert "<img>" not in html


def test_the_script_has_the_words_it_asks_for() -> None:
    """Each by its name, and none that nobody asks for."""
    script = "".join((LAB / "static" / name).read_text() for name in ("lab.js", "live.js"))
    asked = set(re.findall(r'(?:say|tell|end)\("(\w+)"|lab\.words\.(\w+)', script))
    asked = {name for pair in asked for name in pair if name}
    there = set(shown("")["script_words"])
    assert asked <= there
    by_state = {"starting", "running", "comparing", "stopped", "agree", "disagree", "inconclusive"}
    assert {key for key in there - asked if not key.startswith("error_")} <= by_state
    assert {"error_run_going_on", "error_busy", "error_too_long"} <= there
