"""A page's own JavaScript, without a browser: an engine that pip installs, on as much of a document as our pages use.

The elements are those of the page's HTML, so that a script that asks for one that is not there fails as in a browser.
Nothing runs by itself: `settle` carries out what the script has to do until it waits for something that we give it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from typing import Any

import quickjs

Carry = Callable[[str, str, str | None], tuple[int, Mapping[str, str], bytes]]
"""(method, path, body) -> (status, headers, body); raises OSError if nobody answers."""

DOCUMENT = """
"use strict";
class Element {
  constructor(tag) {
    Object.assign(this,
      { tagName: tag.toUpperCase(), text: "", children: [], attributes: {}, style: {}, listeners: {} });
    const names = this.names = new Set();
    this.classList = { add: name => names.add(name), remove: name => names.delete(name), contains: n => names.has(n) };
  }
  get textContent() { return this.text + this.children.map(child => child.textContent).join(""); }
  set textContent(text) { this.children = []; this.text = String(text); }
  get rows() { return this.children; }
  get cells() { return this.children; }
  append(...nodes) {
    for (const node of nodes) this.children.push(node instanceof Element ? node
      : Object.assign(new Element("#text"), { text: String(node) }));
  }
  replaceChildren(...nodes) { this.children = []; this.text = ""; this.append(...nodes); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener(kind, act) { (this.listeners[kind] ??= []).push(act); }
  happen(kind, event = {}) {
    event = { target: this, preventDefault() {}, ...event };
    for (const act of [this["on" + kind], ...(this.listeners[kind] || [])]) if (act) act(event);
  }
  click() { if (!this.disabled) this.happen("click"); }
  setPointerCapture() {}
  async decode() {}
  getBoundingClientRect() { return { left: 0, top: 0, width: 560, height: 320 }; }
  get offsetWidth() { return 100; }
  all(tag) { return this.children.flatMap(c => [...(c.tagName === tag.toUpperCase() ? [c] : []), ...c.all(tag)]); }
}
const ids = {};
const document = Object.assign(new Element("html"), {
  title: "", body: new Element("body"), activeElement: null,
  getElementById: id => ids[id] ?? null,
  createElement: tag => new Element(tag), createElementNS: (space, tag) => new Element(tag),
});
for (const [tag, id, attributes, text] of JSON.parse(__elements)) {
  ids[id] = Object.assign(new Element(tag), { id, attributes, text, disabled: "disabled" in attributes });
}
const URL = { made: 0, revoked: 0,
  createObjectURL(blob) { return "blob:" + ++this.made + ":" + blob.size; }, revokeObjectURL() { this.revoked++; } };
const timers = [];
const setTimeout = (act, wait) => { timers.push([act, wait]); };
async function fetch(path, { method = "GET", body = null } = {}) {
  const answer = JSON.parse(__carry(method, path, body));
  if (answer === null) throw new TypeError("Failed to fetch");
  const { status, headers, size } = answer;
  return { status, ok: status >= 200 && status < 300, blob: async () => ({ size }),
    headers: { get: name => headers[name.toLowerCase()] ?? null } };
}
"""


class _Parts(HTMLParser):
    """Elements that have an id, with the text that they begin with, and the page's script."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, str, dict[str, str], str]] = []
        self.script, self.inside = "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.inside = tag if tag == "script" and not given else given.get("id", "")
        if "id" in given:
            assert given["id"] not in [element[1] for element in self.elements], "an id stands for one element"
            self.elements.append((tag, given["id"], given, ""))

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.script += data
        elif self.inside:
            tag, name, given, text = self.elements[-1]
            self.elements[-1] = (tag, name, given, text + data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


class Page:
    """A page that was opened; `carry` takes its requests to whoever answers them."""

    def __init__(self, html: str, carry: Carry | None = None):
        self.carry, self.requests = carry, []  # type: ignore[var-annotated]
        parts = _Parts(html)
        assert parts.script, "the page has no script"
        self.context = quickjs.Context()
        self.context.set("__elements", json.dumps(parts.elements))
        self.context.add_callable("__carry", self._carry)
        self.context.eval(DOCUMENT)
        self.context.eval(parts.script)

    def _carry(self, method: str, path: str, body: str | None) -> str:
        self.requests.append((method, path, body))
        try:
            assert self.carry is not None, f"{path}: this page is to work without a network"
            status, headers, content = self.carry(method, path, body)
        except OSError:
            return "null"
        lower = {name.lower(): value for name, value in headers.items()}
        return json.dumps({"status": status, "headers": lower, "size": len(content)})

    def js(self, expression: str) -> Any:
        """Its value, which is a number, a text or made of them."""
        told = self.context.eval(f"JSON.stringify({expression})")
        return None if told is None else json.loads(told)

    def do(self, statement: str) -> None:
        self.context.eval(f"{{ {statement} }}")

    def settle(self, expression: str, value: Any, steps: int = 10_000) -> None:
        """Until this is so."""
        for _ in range(steps):
            if self.js(expression) == value:
                return
            if not self.context.execute_pending_job():
                assert self.js("timers.length"), f"the page waits for ever; {expression} is {self.js(expression)!r}"
                self.do("timers.shift()[0]()")  # time passes
        raise AssertionError(f"{expression} is {self.js(expression)!r}")
