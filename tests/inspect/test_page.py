"""`nmt inspect --format html`: the page as a file, and the page in a real browser."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from support.tiny_run import SENTENCE

from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import attention
from nmt_cli.inspect.draw import html_page

HOSTILE = 'a </script><script>document.title = "hacked"</script> <!-- <b>cat</b> & "猫" 🐈'


def test_the_page_is_one_file_and_escapes_the_sentence(run, tmp_path):
    page = tmp_path / "page.html"
    assert run(HOSTILE, "--format", "html", "--out", page) == ""
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 2 and "<b>" not in text and "__DATA__" not in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)|@import|url\(|fetch\(|XMLHttpRequest""", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.S)[1])
    assert data["source"] == HOSTILE
    with pytest.raises(NmtError, match="exists"):
        run(SENTENCE, "--format", "html", "--out", page)
    run(SENTENCE, "--format", "html", "--out", page, "--force")
    assert page.read_text(encoding="utf-8") == run(SENTENCE, "--format", "html") != text


def test_the_page_in_a_browser(browser, trained, tmp_path):
    text = f"the cat {HOSTILE[2:]}"
    result = attention(trained, text, "le chat vert.")
    (tmp_path / "page.html").write_text(html_page(result), encoding="utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 900})
    page.set_default_timeout(180_000)  # a busy machine is slow
    requested, problems = [], []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())

    def said() -> str:
        return page.locator("#said").inner_text()

    def attends_to(row: int, weights: np.ndarray, kind: str = "cross") -> str:
        return f"“{result.rows[kind][row]}” attends to {result.columns[kind][weights[row].argmax()]} "

    # The sentence is text, not HTML.
    mean = result.mean("cross")
    assert page.title() == f"{text} – nmt inspect"
    assert (
        page.locator("#columns button").evaluate_all("all => all.map(b => b.firstChild.data)")
        == (result.columns["cross"])
    )
    assert page.locator("script, b").count() == 2

    # The mouse: a target word shows what it attends to, a source word shows what attends to it.
    page.hover("#rows button:nth-child(2)")
    assert said().startswith(attends_to(1, mean))
    shown = [figure for figure in page.locator("#columns small").all_inner_texts() if figure]
    assert shown == [f"{weight:.0%}" for weight in mean[1] if weight >= 0.005]
    page.hover("#columns button:nth-child(1)")
    assert said().startswith("“the” is attended to by ")
    page.hover("#map tbody tr:nth-child(3) td:nth-child(2)")
    assert said().startswith(attends_to(2, mean))

    # The keyboard: Tab goes through the three controls to the words, arrow keys go from word to word.
    page.hover("h1")
    focused = []
    for _ in range(6):
        page.keyboard.press("Tab")
        focused.append(page.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert focused == ["kind", "layer", "head", "columns", "rows", ""], focused  # "": the map, which can be scrolled
    page.focus('#rows button[tabindex="0"]')
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert said().startswith(attends_to(1, mean))
    page.keyboard.press("ArrowUp")
    assert said().startswith("“cat” is attended to by ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert said().startswith(attends_to(3, mean))

    # The controls by keyboard: the first entry below "mean" is layer 1, then head 1, then another kind.
    for control in ("#layer", "#head"):
        page.focus(control)
        page.keyboard.press("ArrowDown")
    assert said().startswith(attends_to(3, result.mean("cross", 1, 1)))
    assert re.match(r"This head: \d+% to the previous word, ", page.locator("#summary").inner_text())
    page.focus("#kind")
    page.keyboard.press("ArrowDown")
    assert page.input_value("#kind") == "encoder"
    assert said().startswith(attends_to(0, result.mean("encoder"), "encoder"))
    assert page.locator("#layer option").count() == 4  # the mean and three layers

    # Dark mode turns the page dark.
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == "rgb(20, 23, 28)"

    assert requested and all(url.startswith(("file:", "data:")) for url in requested)
    assert not problems
