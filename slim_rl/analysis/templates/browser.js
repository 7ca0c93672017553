// The dialogue browser: filters, a list of episodes, and one episode (beside the other model's of the same
// task). Texts reach the page as text only, never as markup. A link ends in #dialogue=EPISODE.
//
// A study's own script may set `window.dialogueExtra = (episode, data, element) => [nodes]` before this one: what
// stands above the messages of an episode.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("dialogues").textContent);
  const form = document.getElementById("filters"), controls = form.elements;
  const list = document.getElementById("episodes");
  const view = document.getElementById("episode");
  const LIMIT = 150, LONG = 300;
  const byId = new Map(data.episodes.map((episode) => [episode.id, episode]));
  const texts = new Map(data.episodes.map((e) => [e.id, e.turns
    .flatMap(([, heard, text, calls]) => [...heard.map((h) => h[1]), text, ...calls.map((c) => c.join(" "))])
    .join("\n").toLowerCase()]));

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function chosen() {
    const value = (name) => (controls[name] ? controls[name].value.trim() : "");
    const within = (number, name) =>
      (value(name + "-from") === "" || number >= Number(value(name + "-from"))) &&
      (value(name + "-to") === "" || number <= Number(value(name + "-to")));
    const words = value("search").toLowerCase();
    return data.episodes.filter((e) =>
      (value("player") === "" || e.player === value("player")) &&
      (value("step") === "" || (e.player === "policy" && e.step === Number(value("step")))) &&
      within(e.reward ?? 0, "reward") && within(e.count, "count") &&
      (words === "" || texts.get(e.id).includes(words)));
  }

  const who = (episode) => data.titles[episode.player] + (episode.player === "policy" ? ", step " + episode.step : "");
  const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));

  function fill() {
    const matching = chosen();
    document.getElementById("count").textContent =
      matching.length + " of " + data.episodes.length + " episodes" + (matching.length > LIMIT ? "; the first " + LIMIT + " are listed" : "");
    list.replaceChildren(...matching.slice(0, LIMIT).map((e) => {
      const label = who(e) + ": reward " + number(e.reward) + (e.label ? ", " + e.label : "") + " (" + e.game + ")";
      const link = element("a", {href: "#dialogue=" + encodeURIComponent(e.id), "data-id": e.id}, label);
      return element("li", {}, link);
    }));
    mark();
  }

  function linked() {
    const match = /^#dialogue=(.*)$/.exec(location.hash);
    try {
      return match && byId.get(decodeURIComponent(match[1]));
    } catch {
      return null;
    }
  }

  function mark() {
    const episode = linked();
    for (const link of list.querySelectorAll("a")) {
      if (episode && link.dataset.id === episode.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  function folded(title, text, open) {
    const details = element("details", {class: "fold"}, element("summary", {}, title), element("pre", {}, text));
    details.open = open;
    return details;
  }

  function hears([role, text]) {
    if (role === "error") return element("div", {class: "note"}, text);
    if (role === "tool") return folded("Result of the tool", text, false);
    return folded(role === "system" ? "System prompt" : "Reads", text, text.length < LONG);
  }

  function calls([name, status, written]) {
    return folded(status === "ok" ? "Calls " + name : "Malformed call: " + status.replaceAll("_", " "), written, false);
  }

  function show(episode) {
    const turns = episode.turns.flatMap(([seat, heard, text, called]) => [
      ...heard.map(hears),
      element("div", {class: seat === episode.own ? "turn own" : "turn"},
        element("b", {}, episode.seats[seat]), text, ...called.map(calls))]);
    const extra = window.dialogueExtra ? window.dialogueExtra(episode, data, element) : [];
    return element("section", {class: "chat", "aria-label": who(episode)},
      element("h4", {}, who(episode)), element("p", {class: "caption"}, episode.caption), ...extra, ...turns);
  }

  function open() {
    const asked = /^#dialogue=/.test(location.hash), episode = asked ? linked() : data.episodes[0];
    mark();
    if (!episode) {
      view.replaceChildren(element("p", {class: "caption"},
        asked ? "That episode is not in this sample." : "This sample has no episodes."));
      return;
    }
    const other = {base: "trained", trained: "base"}[episode.player];
    const pair = data.episodes.filter((e) => e.game === episode.game && (e.id === episode.id || e.player === other));
    view.replaceChildren(element("h3", {tabindex: "-1"}, "Task " + episode.game), element("div", {class: "pair"}, ...pair.map(show)));
    if (document.activeElement && list.contains(document.activeElement)) view.firstChild.focus({preventScroll: true});
  }

  // A task that the page shows elsewhere: both models beside each other.
  for (const place of document.querySelectorAll("[data-task]"))
    place.append(...data.episodes.filter((e) => e.game === place.dataset.task && e.player in {base: 1, trained: 1}).map(show));

  const players = [...new Set(data.episodes.map((e) => e.player))];
  const steps = [...new Set(data.episodes.filter((e) => e.player === "policy").map((e) => e.step))].sort((a, b) => a - b);
  controls.player.append(...players.map((p) => element("option", {value: p}, data.titles[p])));
  controls.step.append(...steps.map((s) => element("option", {value: s}, String(s))));
  form.addEventListener("input", fill);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(fill));
  window.addEventListener("hashchange", () => {
    open();
    if (linked()) document.getElementById("browser").scrollIntoView();
  });
  fill();
  open();
  if (linked()) document.getElementById("browser").scrollIntoView();
})();
