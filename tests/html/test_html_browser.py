"""The page in a real browser: it opens, is driven by pointer and keys, compares, and runs nothing but its own script."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parasim as ps
from parasim.html import write
from parasim.pages import write_page
from parasim.report.labels import op_names
from parasim.units import format_memory, format_seconds

from .conftest import HOSTILE, KEYS

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed (Debian: apt install chromium chromium-driver)"),
]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WIDE = 1300


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; the paths are given so that selenium looks for nothing on the network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={WIDE},900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


class Page:
    """An open page: what it shows, and hands to drive it."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get(path.as_uri())
        self.until("return document.documentElement.dataset.ready")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, 30, poll_frequency=0.02).until(lambda _: self.run(script, *arguments))

    @property
    def view(self) -> tuple[float, float]:
        """Seconds at the left and right of the timeline, after the next frame."""
        self.browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")
        return tuple(float(x) for x in self.run("const d = document.querySelector('#timeline .view').dataset; return [d.from, d.to]"))

    def at(self, seconds: float, lane: float) -> tuple[float, float]:
        """Client coordinates of an instant and a height in the timeline."""
        low, high = self.view
        find = "const v = document.querySelector('#timeline .view'); v.scrollIntoView({block: 'center', behavior: 'instant'});"
        box, gutter = self.run(f"{find} return [v.getBoundingClientRect().toJSON(), Number(v.dataset.gutter)]")
        return box["x"] + 1 + gutter + (seconds - low) / (high - low) * (box["width"] - 2 - gutter), box["y"] + 1 + lane

    def pointer(self, x: float, y: float, *, click: bool = False, to: tuple[float, float] | None = None) -> None:
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        actions = ActionBuilder(self.browser, duration=0)
        actions.pointer_action.move_to_location(round(x), round(y))
        if click:
            actions.pointer_action.click()
        if to is not None:
            half = round((x + to[0]) / 2), round((y + to[1]) / 2)
            actions.pointer_action.pointer_down().move_to_location(*half).move_to_location(round(to[0]), round(to[1])).pointer_up()
        actions.perform()

    def keys(self, *keys: str, selector: str = "#timeline .view") -> None:
        from selenium.webdriver.common.by import By

        self.browser.find_element(By.CSS_SELECTOR, selector).send_keys(*keys)

    def tip(self) -> str:
        return str(self.until("const t = document.getElementById('tip'); return t.hidden ? '' : t.innerText"))

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def quiet(self) -> None:
        """No message on the console, no dialog, no element that the page did not make."""
        assert [entry["message"] for entry in self.browser.get_log("browser")] == []
        assert self.run("return document.querySelectorAll('img, iframe, object, embed, main script, header script').length") == 0
        shown = self.run("return ['summary', 'comparison', 'links', 'communication'].map(id => document.getElementById(id)?.innerText || '').join(' ')")
        assert not re.search(r"undefined|NaN|\[object|\bfalse|\bnull\b", shown)


@pytest.fixture
def opened(browser: Any, before: ps.Result, tmp_path: Path) -> Iterator[Page]:
    before.write_html(tmp_path / "one.html")
    page = Page(browser, tmp_path / "one.html")
    yield page
    page.quiet()


CALLS, OPS = 36.0, 53.0  # heights of the first rank's lanes: microbatches, ops


def test_the_numbers_are_those_of_the_report(opened: Page, before: ps.Result) -> None:
    summary = opened.text("#summary")
    for value in (format_seconds(before.report.step_time), f"{100 * (before.report.mfu or 0):.1f} %", format_memory(before.report.memory.peak.nbytes)):
        assert value in summary
    assert all(assumption in opened.text("#assumptions") for assumption in before.report.assumptions)
    assert opened.run("return [...document.querySelectorAll('main > section > .head > h2')].map(x => x.textContent)") == [
        "Summary", "Timeline", "Memory", "Links", "Communication", "Layout", "Assumptions and uncertainty",
    ]  # fmt: skip


def test_a_hostile_name_stays_text(browser: Any, before: ps.Result, tmp_path: Path) -> None:
    write(tmp_path / "x.html", replace(before.side, name=HOSTILE))
    page = Page(browser, tmp_path / "x.html")
    assert page.run("return document.querySelector('h1').textContent") == HOSTILE
    assert page.run("return document.title") == f"\u2068{HOSTILE}\u2069: parasim".strip()
    assert HOSTILE in page.run("return document.getElementById('subtitle').textContent")  # the model's name
    # the mark that turns text around ends with its own element
    assert page.run("return getComputedStyle(document.querySelector('h1 bdi')).unicodeBidi") == "isolate"
    page.quiet()


def test_hovering_a_bar_says_what_it_is(opened: Page, before: ps.Result) -> None:
    ops, names = before.timeline.of(0), op_names(before.timeline)  # rank 0 comes first
    op = next(i for i, name in enumerate(names) if name.startswith("tp F0 layer"))
    middle, length = float(ops["start"][op] + ops["end"][op]) / 2, float(ops["end"][op] - ops["start"][op])
    zoom(opened, middle, length)
    opened.pointer(*opened.at(middle, OPS))
    tip = opened.tip()
    assert tip.startswith(names[op]) and "all_reduce tp, 2 ranks" in tip
    whole = np.rint(np.array([ops["start"][op], ops["end"][op]]) * 1e9)  # pages hold whole nanoseconds
    assert f"lasts\n{format_seconds((whole[1] - whole[0]) * 1e-9)}" in tip
    assert f"sends\n{format_memory(float(ops['bytes'][op]))}" in tip and "node0.gpu0>node0.switch scale_up" in tip
    opened.pointer(*opened.at(middle, CALLS))
    assert opened.tip().startswith("F0 rank 0 (stands for 4), stage 0")


def zoom(page: Page, middle: float, length: float) -> None:
    """Zoom in at an instant with Ctrl and the wheel until an op of `length` is wide."""
    for _ in range(40):
        low, high = page.view
        if (high - low) < 12 * length:
            return
        x, y = page.at(middle, OPS)
        page.run(
            "document.querySelector('#timeline .view').dispatchEvent("
            "new WheelEvent('wheel', {deltaY: -160, ctrlKey: true, clientX: arguments[0], clientY: arguments[1], bubbles: true, cancelable: true}))",
            x, y,
        )  # fmt: skip
    raise AssertionError("the wheel does not zoom")


def test_keys_zoom_pan_and_reset(opened: Page, before: ps.Result) -> None:
    whole = opened.view
    assert whole == (0, pytest.approx(before.timeline.makespan, abs=1e-8))
    opened.keys("+")
    low, high = opened.view
    assert (high - low) == pytest.approx(whole[1] / 1.5)
    opened.keys("\ue014")  # right
    assert opened.view[0] == pytest.approx(low + 0.1 * (high - low))
    opened.keys("\ue012", "\ue012")  # left
    assert opened.view[0] == pytest.approx(low - 0.1 * (high - low))
    opened.keys("-", "-", "-")
    assert opened.view == pytest.approx(whole)
    opened.keys("+", "+", "0")
    assert opened.view == pytest.approx(whole)


def test_dragging_pans(opened: Page) -> None:
    opened.keys("+", "+", "+", "+")
    low, high = opened.view
    x, y = opened.at((low + high) / 2, CALLS)
    opened.pointer(x, y, to=(x - 100, y))
    width = opened.run("const v = document.querySelector('#timeline .view'); return v.clientWidth - Number(v.dataset.gutter)")
    assert opened.view[0] == pytest.approx(low + 100 / width * (high - low), rel=1e-6)


def test_the_tab_key_reaches_every_pane_and_shows_where_it_is(opened: Page) -> None:
    opened.run("document.body.tabIndex = -1; document.body.focus()")
    reached: dict[str, str] = {}
    for _ in range(80):
        opened.browser.switch_to.active_element.send_keys("\ue004")
        label, outline = opened.run(
            "const e = document.activeElement; return [e.getAttribute('aria-label') || e.textContent, getComputedStyle(e).outlineStyle]"
        )
        reached[label] = outline
    for label in ("Timeline of all streams", "Memory over time", "Use of links over time", "Map of all ranks; arrow keys go from rank to rank"):
        assert reached[label] == "solid"
    nameless = opened.run(
        "return [...document.querySelectorAll('button, [tabindex=\"0\"], select')].filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).length"
    )
    assert nameless == 0


def test_enter_keeps_an_op_and_its_neighbours_are_a_key_away(opened: Page) -> None:
    opened.keys("\ue007")
    first = opened.text("#selection")
    assert first.startswith(("F", "B", "S")) and "lasts" in first
    opened.keys("\ue008", "\ue014", "\ue008")  # shift + right
    assert opened.text("#selection") != first
    opened.keys("\ue008", "\ue015", "\ue008")  # shift + down: to the ops
    assert "lasts" in opened.text("#selection")
    assert opened.run("return document.getElementById('selection').getAttribute('aria-live')") == "polite"
    opened.keys("\ue00c")
    assert opened.text("#selection") == ""


def test_dependencies_lead_to_their_ops(opened: Page, before: ps.Result) -> None:
    opened.keys("\ue007", "\ue008", "\ue015", "\ue008")
    for _ in range(200):  # along the ops until one has something to wait for
        if opened.run("return document.querySelectorAll('#selection button').length"):
            break
        opened.keys("\ue008", "\ue014", "\ue008")
    target = opened.text("#selection button")
    opened.run("document.querySelector('#selection button').click()")
    assert opened.text("#selection").startswith(target.partition(",")[0])


def test_memory_and_layout_follow_the_keys(opened: Page) -> None:
    title = opened.text("#memory h3")
    opened.run("[...document.querySelectorAll('.peaks button')].find(b => b.getAttribute('aria-pressed') === 'false').click()")
    opened.until("return document.querySelector('#memory h3').innerText !== arguments[0]", title)
    assert opened.run("return document.querySelectorAll('.peaks button[aria-pressed=true]').length") == 1
    opened.keys("\ue014", "\ue014", selector="#layout .view")
    said = opened.text("#layout .says")
    assert said.startswith("rank 1, on node0, tp 1, dp 0, pp 0, stage 0")


def test_two_runs_stand_on_one_time_axis(browser: Any, before: ps.Result, after: ps.Result, tmp_path: Path) -> None:
    before.write_html(tmp_path / "two.html", after)
    page = Page(browser, tmp_path / "two.html")
    table = page.run("return [...document.querySelectorAll('#comparison tbody tr')].map(r => [...r.children].map(c => c.innerText))")
    change = 100 * (after.report.step_time / before.report.step_time - 1)
    assert table[0][:3] == ["step time", format_seconds(before.report.step_time), format_seconds(after.report.step_time)]
    assert table[0][4] == f"{change:+.1f} %"
    assert page.view[1] == pytest.approx(max(before.timeline.makespan, after.timeline.makespan), abs=1e-8)
    page.keys("+")
    assert page.view[1] - page.view[0] == pytest.approx(max(before.timeline.makespan, after.timeline.makespan) / 1.5, abs=1e-8)
    assert page.run("return document.querySelectorAll('.peaks button').length") == len(before.timeline.ranks) + len(after.timeline.ranks)
    page.quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_followed_and_legible(opened: Page, scheme: str) -> None:
    opened.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    value = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"
    ink, muted, panel = (luminance(opened.run(value, f"--{name}")) for name in ("ink", "muted", "panel"))
    assert (panel > 0.5) == (scheme == "light")
    # WCAG 2.2, 1.4.3: 4.5 to 1 for text
    assert contrast(ink, panel) > 7 and contrast(muted, panel) > 4.5
    opened.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


def test_sixteen_thousand_devices_open_at_once(browser: Any, tmp_path: Path) -> None:
    result = ps.simulate_run(ps.load(EXAMPLES / "llama3-405b-8192.yaml", ["devices=16384"]))
    path = result.write_html(tmp_path / "large.html")
    assert path.stat().st_size < 5e6
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    page = Page(browser, path)
    spent = {m["name"]: m["value"] for m in browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    browser.execute_cdp_cmd("Performance.disable", {})
    assert spent["TaskDuration"] < 2  # seconds of the page's thread, whatever else the machine does
    assert "16,384" in page.text("#summary") and "stands for 1,024" in page.text("#memory h3")
    page.keys("\ue014", selector="#layout .view")
    assert page.text("#layout .says").startswith("rank 0, on node0")
    whole = page.view
    page.keys("+", "+")
    low, high = page.view
    assert high - low == pytest.approx(whole[1] / 1.5**2)
    for _ in range(5):  # the page may still scroll from what was pressed in another panel
        x, y = page.at((low + high) / 2, CALLS)
        page.pointer(x, y, to=(x - 100, y))
        if page.view[0] > low:
            break
    assert page.view[0] > low  # dragged
    page.keys("0")
    ops, names = result.timeline.of(0), op_names(result.timeline)
    page.pointer(*page.at(float(ops["start"][0] + ops["end"][0]) / 2 + 1e-2, CALLS))
    assert page.tip().startswith(f"{names[0]} rank 0 (stands for 1,024), stage 0")
    page.quiet()


def test_sixteen_thousand_devices_are_compared(browser: Any, tmp_path: Path) -> None:
    one = ps.simulate_run(ps.load(EXAMPLES / "llama3-405b-8192.yaml", ["devices=16384"]))
    other = ps.simulate_run(ps.vary(one.run, ["recompute=none"]))
    path = one.write_html(tmp_path / "two.html", other)
    assert path.stat().st_size < 5e6
    page = Page(browser, path)
    table = page.run("return [...document.querySelectorAll('#comparison tbody tr')].map(r => [...r.children].map(c => c.innerText))")
    assert table[0][:3] == ["step time", format_seconds(one.report.step_time), format_seconds(other.report.step_time)]
    page.quiet()


def test_a_trace_stands_beside_its_prediction(browser: Any, tmp_path: Path) -> None:
    """A step of one rank as a profiler saw it: no report, no stages, no memory; the predicted rank stands above it."""
    event = {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "ts": 0, "dur": 500, "args": {"stream": 7}}
    transfer = {**event, "name": "ncclDevKernel_AllReduce_Sum", "ts": 300, "args": {"stream": 9}}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event, transfer]}))
    (tmp_path / "run.yaml").write_text(json.dumps(KEYS))
    write_page(tmp_path / "run.yaml", tmp_path / "trace.json", (), "", tmp_path / "both.html")
    page = Page(browser, tmp_path / "both.html")
    assert "1 rank · measured" in page.text("#subtitle")
    table = page.run("return [...document.querySelectorAll('#comparison tbody tr')].map(r => r.children[0].innerText + ' ' + r.children[2].innerText)")
    assert "products (GEMM) 500 us" in table and "all_reduce 500 us" in table and "exposed other 300 us" in table
    page.pointer(*page.at(100e-6, CALLS))
    assert page.tip().startswith("F1 rank 0 (stands for 4), stage 0")  # the predicted block comes first
    page.quiet()


@pytest.mark.parametrize("width", [390, 1300])
def test_nothing_is_wider_than_the_window(browser: Any, before: ps.Result, after: ps.Result, tmp_path: Path, width: int) -> None:
    before.write_html(tmp_path / "two.html", after)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})
    try:
        page = Page(browser, tmp_path / "two.html")
        assert page.run("return document.documentElement.scrollWidth") <= width
        empty = "return [...document.querySelectorAll('main > section')].filter(s => s.innerText.length < 40).map(s => s.id)"
        assert page.run(empty) == []
        page.quiet()
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
