"""The page in a real browser, on runs of a moment: what it shows is what Python says, whatever is typed or clicked."""

from __future__ import annotations

import re

import pytest
import torch

from attnres import load_run
from attnres.analysis import sublayer_names
from attnres.report.html import script
from tests.look.pages import TEXT, ActionChains, Keys, Select, mean_loss


def test_typing_shows_tokens_their_loss_and_what_may_follow(opened, runs):
    assert "".join(token.text or " " for token in opened.all(".strip .token")) == TEXT
    assert opened.loss() == pytest.approx(mean_loss(runs[0]), abs=1e-5)
    assert opened.find(".expects h3").text == "After “s” the model expects"
    run = load_run(runs[0])
    with torch.no_grad():
        likely = run.model(torch.tensor([run.tokenizer.encode(TEXT)]))[0, -1].softmax(-1).max()
    assert opened.find(".next li").text.split("\n")[-1] == f"{float(f'{100 * likely:.2g}'):g}%"


def test_keys_and_pointer_go_through_tokens_sites_and_sources(opened):
    assert opened.sentence().startswith("“s” (token 18): readout reads")
    opened.find(".strip").send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    opened.settled()
    assert opened.sentence().startswith("“h” (token 1)")
    opened.press(Keys.ARROW_UP, Keys.ARROW_RIGHT, "]")
    opened.settled()
    assert opened.sentence().startswith("“e” (token 2): layer 1 MLP reads")
    assert opened.tooltip().startswith("layer 1 MLP reads 1 of layer 0 attention\nweight")
    assert opened.find(".subject").text == "layer 0 attention as read by layer 1 MLP"
    assert opened.units()[0] == "layer 1 MLP reads of each row:"
    opened.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert opened.find(".subject").text != "layer 0 attention as read by layer 1 MLP"
    chart = opened.find("svg.depth")
    opened.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    box, n = opened.find("svg.depth .cells").rect, 5
    x, y = box["x"] + 1.5 / n * box["width"], box["y"] + 3.5 / n * box["height"]  # site 3, source 1
    middle = chart.rect["x"] + chart.rect["width"] / 2, chart.rect["y"] + chart.rect["height"] / 2
    at = round(x - middle[0]), round(y - middle[1])
    ActionChains(opened.browser, duration=10).move_to_element_with_offset(chart, *at).perform()
    assert opened.tooltip().startswith("layer 1 MLP reads 1 of layer 0 attention")
    ActionChains(opened.browser, duration=10).move_to_element_with_offset(chart, *at).click().perform()
    assert opened.find(".subject").text == "layer 0 attention as read by layer 1 MLP"


@pytest.mark.slow
def test_all_that_can_be_used_has_a_name_for_screen_readers(opened):
    opened.choose("Model", 3)  # the one with several reads
    tree = opened.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    used = {"button", "combobox", "textbox", "spinbutton", "slider", "listbox", "option", "image", "DisclosureTriangle"}
    nodes = [node for node in tree if not node.get("ignored") and node.get("role", {}).get("value") in used]
    assert len({node["role"]["value"] for node in nodes}) >= 7
    assert [node for node in nodes if not node.get("name", {}).get("value", "").strip()] == []


def test_what_the_sources_add_closes_to_the_logit(opened):
    foot = next(line for line in opened.units() if line.startswith("Σ"))
    total, logit = foot.removeprefix("Σ ").split(" = logit ")
    assert float(total) == pytest.approx(float(logit), rel=2e-3)


@pytest.mark.parametrize(("tool", "everywhere"), [("Mute", False), ("Swap for that of", True)])
def test_a_change_does_what_its_python_does(opened, tool, everywhere):
    opened.choose("Model", 1)
    before = opened.loss()
    opened.find(".strip").send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    opened.press(Keys.ARROW_UP, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    if everywhere:
        Select(opened.find("select[name=where]")).select_by_value("all")
        Select(opened.find("select[name=when]")).select_by_value("token")
    opened.find("input[aria-label='prompt to patch from']").send_keys("a lazy fox over it!")
    after = opened.change(tool)
    opened.click("Copy as Python")
    names: dict = {}
    exec(opened.until(lambda: opened.find(".tool-box pre").text), names)
    assert after == pytest.approx(float(names["loss"]), abs=1e-5)
    assert after != before and f"{before:.3f} → {after:.3f}" in opened.find(".losses").text
    assert len(opened.all(".changes li:not(.none)")) == 1
    assert opened.change("Undo") == before
    assert opened.change("Redo") == after
    assert opened.change("Clear all") == before


def test_the_text_goes_on_token_by_token_and_can_be_kept(opened, client):
    expected = client.ask("continue", view={"model": 0, "text": TEXT}, temperature=0.0)
    opened.find("#temperature").clear()
    opened.find("#temperature").send_keys("0")  # where the likeliest is drawn, no half characters are
    assert not opened.find("#keep").is_displayed()
    opened.find("#continue").click()
    opened.until(lambda: len(opened.all(".token.drawn")) == 40)
    opened.until(lambda: opened.find("#continue").text == "Continue the text")
    last = expected[39]  # behind it Ended
    name = opened.all(".token.drawn")[-1].get_attribute("aria-label")
    assert re.match(r"generated: “.+”, [\d.]+% likely\nlikeliest: “", name)
    shown = [row.text.split("%")[0] for row in opened.all(".next li > button > span:last-child")]
    assert [float(part) for part in shown] == pytest.approx(
        [100 * token["probability"] for token in last["likeliest"]], rel=0.06
    )
    opened.find("#keep").click()
    opened.until(lambda: not opened.all(".token.drawn"))
    opened.settled()
    kept = "".join(line["text"] for line in expected)
    assert opened.find("#text").get_property("value") == TEXT + kept
    assert not opened.find("#keep").is_displayed()


def test_typing_does_not_wait_for_answers(opened):
    """What was typed while an answer is under way stands there, and the last text alone is answered in the end."""
    box = opened.find("#text")
    for text in ("o", "ne", " after", " another"):
        box.send_keys(text)
    opened.settled()
    assert opened.find("#text").get_property("value") == TEXT + "one after another"
    assert len(opened.all(".strip .token")) == len(TEXT + "one after another")


def in_browser(browser, name: str) -> None:
    """Have what reading.js exports as `window.exported`."""
    browser.get("about:blank")
    module = script("look/page/reading.js").removesuffix("})();\n")
    browser.execute_script(f"{module}window.exported = look_page_reading.{name};}})();")


READ = """
const [model, weights] = arguments, sizes = new Float32Array(model.sites.length);
const read = new exported(model, 0, 0, Float32Array.from(weights), sizes, null, new Map());
return [model.sites.map((_, site) => read.sentence(site)[1]), read.telling()];
"""


def test_the_sentence_names_the_largest_weights(browser):
    in_browser(browser, "Reading")
    sites, sources = 6, ["embedding", *sublayer_names(6)]
    torch.manual_seed(0)
    weights = torch.randn(sites + 1, sites + 1).tril()
    weights[4, :5] = 0.2
    rows, columns = torch.tril_indices(sites + 1, sites + 1)
    model = {"sites": [*sources[1:], "readout"], "sources": sources, "per_channel": False}
    sentences, telling = browser.execute_script(READ, model, weights[rows, columns].tolist())
    share = weights.abs() / weights.abs().sum(-1, keepdim=True)
    uneven = [float((share[site, : site + 1] - 1 / (site + 1)).abs().sum()) for site in range(sites + 1)]
    assert telling == uneven.index(max(uneven))
    assert sentences[4] == "reads all 5 sources alike, 0.2 of each."
    for site in (0, 1, 2, 3, 5, 6):
        *named, last = sentences[site].removeprefix("reads ").removesuffix(".").split(", ")
        last, _, others = last.partition(" and ")
        told = {source: float(weight) for weight, source in (part.split(" of ") for part in (*named, last))}
        row = weights[site, : site + 1]
        largest = row.abs().topk(min(3, site + 1)).indices.tolist()
        assert told == pytest.approx({sources[i]: float(row[i]) for i in largest}, rel=0.06)
        assert others == ("" if site < 3 else "1 other source" if site == 3 else f"{site - 2} other sources")
