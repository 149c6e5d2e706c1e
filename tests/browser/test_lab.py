"""The lab as its users have it: a page in a browser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Open, violations
from tests.conftest import COMMAND

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
POLICIES = ("immediate", "static", "continuous", "chunked")
PRESETS = ("steady", "head-of-line", "busy", "overload")
TOKENS = 63  # of the toy ledger's sixteen answers


def golden(preset: str, policy: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (GOLDEN / f"toy_{preset.replace('-', '_')}_{policy}.json").read_text()
    )["aggregates"]
    return found


def scores(page: Page) -> list[str]:
    return page.locator(".score strong").all_inner_texts()


def expected(preset: str) -> list[str]:
    return [f"{golden(preset, policy)['slo_pass']} of 16" for policy in POLICIES]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_shows_what_is_known_of_it(lab: str, opened: Open, preset: str) -> None:
    """How many meet the SLO under each policy, as the worked examples have it."""
    page = opened(f"{lab}/")
    page.locator(f"#preset-{preset}").click()
    page.locator("#pass").click()
    assert scores(page) == expected(preset)
    assert page.locator(f"#preset-{preset}").get_attribute("aria-current") == "true"


def test_predictions_come_first(lab: str, opened: Open) -> None:
    """Nothing of the outcome is seen before; then each prediction stands beside it."""
    page = opened(f"{lab}/?preset=busy")
    assert not page.locator("#compare").is_visible()
    for policy, guess in zip(POLICIES, ("02", "9", "", "16"), strict=True):
        page.locator(f"#predict-{policy}").fill(guess)
    page.get_by_role("button", name="Show what happened").click()
    said = page.locator(".said")
    assert [said.nth(k).is_visible() for k in range(4)] == [True, True, False, True]
    assert said.nth(1).inner_text() == "You said 9"
    right = [k for k in range(4) if "exact" in (said.nth(k).get_attribute("class") or "")]
    assert right == [0, 3], "2 and 16 are right"
    assert "exactly right" in said.nth(3).inner_text(), "and not by colour alone"
    page.locator("#focus-static").click()
    expect(page.locator("#focus-title")).to_contain_text("Static")
    expect(said.nth(1), "whatever the policy in focus").to_have_text("You said 9", use_inner_text=True)
    page.locator("#languages a[lang=zh]").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(said.nth(1), "and whatever the language").to_contain_text("9", use_inner_text=True)
    page.locator("#languages a[lang=en]").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    page.locator("#knob-rate").fill("9")
    expect(page.locator("#announce")).to_have_text("Now: Arrival rate 9.")
    expect(said.nth(1)).not_to_be_visible()
    page.go_back()
    expect(said.nth(1)).to_have_text("You said 9 ✓ exactly right", use_inner_text=False)
    page.get_by_role("button", name="predict again").click()
    assert not page.locator("#compare").is_visible()
    assert page.locator("#predict-immediate").is_visible()


def test_a_knob_changes_everything_at_once(lab: str, opened: Open) -> None:
    """Figures, pictures and the address; going back leads to the preset that was left."""
    page = opened(f"{lab}/?preset=steady#123")
    page.locator("#preset-busy").click()
    page.locator("#pass").click()
    before = page.locator(".charts svg").first.inner_html()
    page.locator("#knob-rate").fill("16.9")
    expect(page.locator(".score strong")).to_have_text(expected("overload"))
    assert page.locator(".charts svg").first.inner_html() != before
    assert page.locator("#preset-overload").get_attribute("aria-current") == "true", "it is that preset now"
    assert page.evaluate("document.activeElement.id") == "knob-rate", "typing can go on"
    assert "preset=overload" in page.url
    page.locator("#knob-rate").fill("9")
    expect(page.locator("#announce")).to_have_text("Now: Arrival rate 9.")
    page.locator("#focus-static").click()
    expect(page.locator("#focus-title")).to_contain_text("Static")
    page.go_back()
    expect(page.locator("#focus-title")).to_contain_text("Continuous")
    assert page.locator("#knob-rate").input_value() == "9"
    page.go_back()
    expect(page.locator(".score strong")).to_have_text(expected("busy"))
    assert page.locator("#knob-rate").input_value() == "8", "turning one knob on and on is one step"
    page.go_back()
    page.wait_for_url("**/?preset=steady#123")


def test_an_emptied_knob_is_its_presets(lab: str, opened: Open) -> None:
    """And not that of another preset; what has the focus keeps it."""
    page = opened(f"{lab}/?preset=busy&batch=2")
    page.locator("#pass").click()
    page.locator("#knob-rate").fill("9")
    expect(page.locator("#announce")).to_contain_text("Arrival rate 9")
    page.locator("#knob-rate").fill("")
    page.locator("#knob-batch").fill("")
    page.locator("#step-next").focus()
    expect(page.locator(".score strong")).to_have_text(expected("busy"))
    assert page.locator("#knob-rate").get_attribute("placeholder") == "8"
    assert page.evaluate("document.activeElement.id") == "step-next"
    assert page.url.endswith("/?preset=busy&lang=en")


def test_an_address_carries_the_whole_setting(lab: str, opened: Open) -> None:
    """What one reader set is what another one sees who opens the address."""
    page = opened(f"{lab}/?preset=busy")
    page.locator("#pass").click()
    page.locator("#knob-slo").fill("900")
    page.locator("#knob-batch").fill("2")
    page.locator("#knob-ttft").fill("450")
    page.locator("#knob-policy").select_option("static")
    expect(page.locator("#focus-title")).to_contain_text("Static")
    other = opened(page.url)
    other.locator("#pass").click()
    for name, value in (("slo", "900"), ("ttft", "450"), ("batch", "2"), ("rate", "8"), ("policy", "static")):
        assert other.locator(f"#knob-{name}").input_value() == value
    assert scores(other) == scores(page)
    assert "E2E 900 ms, TTFT 450 ms" in (other.locator("#predict-is").text_content() or "")
    assert other.locator(".figures").inner_text() == page.locator(".figures").inner_text()


def test_what_cannot_be_used_is_said(lab: str, opened: Open) -> None:
    """The page goes on with the default, and names the field."""
    page = opened(f"{lab}/?preset=busy")
    page.locator("#knob-rate").fill("1000")
    expect(page.locator("#problems")).to_contain_text("Arrival rate: that is not a number from 0.1 to 100")
    rate = page.get_by_label("Arrival rate")
    assert rate.get_attribute("aria-invalid") == "true"
    assert "problem-rate" in (rate.get_attribute("aria-describedby") or "")
    rate.fill("8")
    expect(page.locator("#problems")).to_have_text("")
    assert rate.get_attribute("aria-invalid") is None


def test_ticks_are_stepped_through_by_keyboard(lab: str, opened: Open) -> None:
    """The state, the marks in the picture and what is announced all follow."""
    page = opened(f"{lab}/?preset=busy")
    page.locator("#pass").click()
    ticks = json.loads((GOLDEN / "toy_busy_continuous.json").read_text())["ticks"]

    def shown() -> tuple[int, int, int]:
        fields = ("tick", "kv_reserved", "kv_cached")
        found = [page.locator(f'.state [data-field="{name}"]').inner_text() for name in fields]
        marked = page.locator("#focus .column.now").get_attribute("data-tick")
        assert marked == found[0]
        return int(found[0]), int(found[1]), int(found[2])

    def known(tick: int) -> tuple[int, int, int]:
        return tick, ticks[tick]["kv_reserved"], ticks[tick]["kv_cached"]

    page.locator("#slider").focus()
    assert shown() == known(0)
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert shown() == known(4)
    expect(page.locator("#tick-said")).to_contain_text("Tick 4, 400 ms")
    page.keyboard.press("ArrowLeft")
    assert shown() == known(3)
    page.keyboard.press("End")
    assert shown()[0] == max(tick["tick"] for tick in ticks if tick["emitted"])
    page.keyboard.press("Home")
    page.get_by_role("button", name="Next").press("Enter")
    assert shown() == known(1)
    page.locator('#focus .column[data-tick="9"]').click()
    assert shown() == known(9)
    page.locator("#slider").press("ArrowUp")
    assert shown() == known(10)
    page.locator("#focus-chunked").click()
    expect(page.locator("#focus-title")).to_contain_text("Chunked")
    assert page.locator('.state [data-field="tick"]').inner_text() == "10", "the same tick of another policy"


def test_a_live_run_ends_in_its_agreement(lab: str, opened: Open) -> None:
    """Tokens come in one by one, and both ledgers are compared at the end."""
    page = opened(f"{lab}/?preset=busy&policy=chunked")
    page.locator("#pass").click()
    page.locator("#run").click()
    expect(page.locator(".slots i.here").first).to_be_visible()
    assert page.locator(".slots i.here").count() < TOKENS
    page.locator("#agreement").wait_for(timeout=40_000)
    assert page.locator("#live-status").inner_text() == "Done."
    assert page.locator(".slots i.here").count() == TOKENS
    assert page.locator('[data-agree="requests"]').inner_text() == "16 / 16"
    served, simulated = page.locator('[data-agree="ticks"]').inner_text().split(" / ")
    assert served == simulated
    assert page.locator('[data-agree="verdict"]').inner_text() in ("They agree", "This run proves nothing")
    assert all(page.locator(".measured").all_inner_texts()), "the client's figure for every request"
    assert page.locator("#run").is_enabled()
    counts = page.locator(".stream .count").all_text_contents()
    assert sum(int(count.split(" of ")[0]) for count in counts) == TOKENS, "as a screen reader has it"


def test_a_live_run_belongs_to_no_page(lab: str, opened: Open) -> None:
    """A page that is loaded in the middle of it follows it and can stop it, whatever its own setting."""
    page = opened(f"{lab}/?preset=steady")
    page.locator("#pass").click()
    page.locator("#run").click()
    expect(page.locator(".slots i.here").first).to_be_visible()
    assert page.evaluate("document.activeElement.id") == "run"
    page.reload()
    expect(page.locator(".slots i.here").first).to_be_visible()
    other = opened(f"{lab}/?preset=busy&policy=static")
    expect(other.locator("#problems")).to_contain_text("A live run is going on: Steady, Continuous")
    other.locator("#pass").click()
    expect(other.locator("#live-other")).to_be_visible()
    assert "Continuous" in other.locator("#live").inner_text(), "its own policy"
    page.locator("#stop").press("Enter")
    for each in (page, other):
        expect(each.locator("#live-status")).to_have_text("Stopped.")
        expect(each.locator("#run")).to_be_enabled()
        assert not each.locator("#agreement").is_visible()
    assert page.evaluate("document.activeElement.id") == "stop", "focus stays where it was"
    other.locator("#run").click()
    expect(other.locator("#stop")).to_be_enabled()
    assert not other.locator("#live-other").is_visible()
    assert "Static" in other.locator("#live").inner_text(), "the next run is of the page's setting"
    other.locator("#stop").click()
    expect(other.locator("#live-status")).to_have_text("Stopped.")


def test_what_goes_wrong_is_said(browser: Browser) -> None:
    """A run that is refused, a lab that has too much to do, and one that is gone."""
    process = subprocess.Popen([*COMMAND, "lab", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    page = browser.new_page()
    try:
        page.goto(process.stdout.readline().split()[1] + "?preset=steady&rate=0.1")
        page.locator("#pass").click()
        page.locator("#run").click()
        expect(page.locator("#live-status")).to_contain_text("a live run may take 120 s")
        assert not page.locator("#live-tokens").is_visible()
        busy = '{"error": {"field": null, "message": "no", "code": "busy", "values": {}}}'
        page.route("**/?*", lambda route: route.fulfill(status=503, body=busy))
        page.locator("#knob-rate").fill("2")
        expect(page.locator("#problems")).to_have_text("The lab has too much to do: try again in a moment")
        page.unroute("**/?*")
        page.locator("#knob-rate").fill("2.2")
        expect(page.locator("#announce")).to_contain_text("2.2")
        page.locator("#run").click()
        expect(page.locator("#stop")).to_be_enabled()
        process.kill()
        expect(page.locator("#live-status")).to_have_text("The connection to the lab was lost.")
        expect(page.locator("#run")).to_be_enabled()
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
        page.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {}),
        ("dark", {"color_scheme": "dark"}),
        ("narrow", {"viewport": {"width": 360, "height": 740}}),
        ("chinese", {"locale": "zh-CN"}),
    ],
)
def test_everybody_can_read_it(lab: str, opened: Open, name: str, options: dict[str, object]) -> None:
    """No violation that axe knows of, and nothing wider than the window, in either language."""
    page = opened(f"{lab}/?preset=overload", **options)
    if name == "light":
        assert violations(page) == []
    page.locator("#pass").click()
    page.locator("#all-ticks summary").click()
    if name != "chinese":
        assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.querySelector('#focus .wide').scrollLeft = 200")
    box = page.locator("#focus .names").bounding_box()
    assert box is not None
    assert box["x"] >= 0, "the names of the rows stay in view"


def test_it_speaks_chinese(lab: str, opened: Open) -> None:
    """By the browser's wish or by a link, which keeps the setting."""
    page = opened(f"{lab}/?preset=busy&slo=900", locale="zh-CN")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    page.get_by_role("button", name="跳过").click()
    assert page.locator("#compare-title").inner_text() == "四种策略并排比较"
    page.get_by_role("link", name="English").click()
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("#knob-slo").input_value() == "900"
    assert page.locator("#compare").is_visible(), "who has seen the results need not predict them again"


def test_it_is_useful_without_a_script(lab: str, opened: Open) -> None:
    """Knobs are a form, results are folded in, and what needs a script says so."""
    page = opened(f"{lab}/?preset=steady", java_script_enabled=False)
    page.locator("#knob-rate").fill("8")
    page.get_by_role("button", name="Apply").click()
    assert "rate=8" in page.url
    assert not page.locator("#predictions").is_visible()
    page.locator("#outcome > summary").click()
    assert scores(page) == expected("busy")
    assert page.locator("#focus svg.plot").first.is_visible()
    page.locator("#all-ticks summary").click()
    assert page.locator("#ticks tbody tr").first.is_visible()
    assert "needs JavaScript" in page.locator("#live").inner_text()
    assert not page.locator("#run").is_visible()
