// The dialogue browser: filters, a list of episodes, and one episode (beside the other model's on the same
// board). Texts reach the page as text only, never as markup. A link ends in #dialogue=EPISODE.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("dialogues").textContent);
  const controls = document.getElementById("filters");
  const list = document.getElementById("episodes");
  const view = document.getElementById("episode");
  const AGENT = "player-1", LIMIT = 150;
  const WHO = {base: "Base model", trained: "Trained model", humans: "People", training: "In training"};
  const byId = new Map(data.episodes.map((episode) => [episode.id, episode]));
  const texts = new Map(data.episodes.map((e) => [e.id, e.turns.map((t) => t[1]).join("\n").toLowerCase()]));

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function chosen() {
    const value = (name) => controls.elements[name].value.trim();
    const within = (number, name) =>
      (value(name + "-from") === "" || number >= Number(value(name + "-from"))) &&
      (value(name + "-to") === "" || number <= Number(value(name + "-to")));
    const words = value("search").toLowerCase();
    return data.episodes.filter((e) =>
      (value("player") === "" || e.player === value("player")) &&
      (value("step") === "" || (e.player === "training" && e.step === Number(value("step")))) &&
      within(e.reward ?? 0, "reward") && within(e.questions, "questions") &&
      (words === "" || texts.get(e.id).includes(words)));
  }

  function fill() {
    const found = chosen();
    document.getElementById("count").textContent =
      found.length + " of " + data.episodes.length + " episodes" + (found.length > LIMIT ? "; the first " + LIMIT + " are listed" : "");
    list.replaceChildren(...found.slice(0, LIMIT).map((e) => {
      const label = WHO[e.player] + (e.player === "training" ? ", step " + e.step : "") +
        ": reward " + number(e.reward) + ", " + e.questions + (e.questions === 1 ? " question" : " questions");
      const link = element("a", {href: "#dialogue=" + encodeURIComponent(e.id), "data-id": e.id}, label);
      return element("li", {}, link);
    }));
    mark();
  }

  const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));

  function linked() {
    const match = /^#dialogue=(.*)$/.exec(location.hash);
    try {
      return match && byId.get(decodeURIComponent(match[1]));
    } catch {
      return null;
    }
  }

  function mark() {
    const shown = linked();
    for (const link of list.querySelectorAll("a")) {
      if (shown && link.dataset.id === shown.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  function board(episode, seat, name) {
    const cells = (data.boards[episode.game] || {})[seat];
    if (!cells) return element("p", {class: "caption"}, name + " sees: not recorded.");
    const asked = new Map(episode.asked.map(([r, p, use], i) => [r + "," + p, (i + 1) + ": " + use]));
    const head = element("tr", {}, element("td", {}), ...cells.map((_, p) => element("th", {scope: "col"}, data.papers[p])));
    const rows = cells.map((row, r) => element("tr", {}, element("th", {scope: "row"}, data.reviewers[r].split(" ")[0]),
      ...row.map((value, p) => {
        const question = seat === AGENT ? asked.get(r + "," + p) : undefined;
        const final = episode.final && episode.final[r] === p;
        const cell = element("td", {class: [value !== null && "known", question && "asked", final && "final"].filter(Boolean).join(" ")},
          (value === null ? "?" : String(value)) + (final ? " ★" : ""));
        const says = [value === null ? "not seen" : "seen", question && "asked, question " + question, final && "assigned in the end"];
        cell.title = data.reviewers[r] + ", " + data.papers[p] + ": " + says.filter(Boolean).join("; ");
        return cell;
      })));
    return element("table", {class: "board"}, element("caption", {}, name + " sees"), element("thead", {}, head), element("tbody", {}, ...rows));
  }

  function show(episode) {
    const turns = episode.turns.flatMap(([agent, text, ...errors]) => [
      ...errors.map((error) => element("div", {class: "note"}, error)),
      element("div", {class: agent ? "turn agent" : "turn"},
        element("b", {}, episode.player === "humans" ? (agent ? "First player" : "Second player") : (agent ? "Model" : "Partner")), text)]);
    const facts = episode.status + ": reward " + number(episode.reward) + ", " + episode.questions + " questions, " + episode.useful +
      " of them useful; own view " + number(episode.own_view) +
      (episode.player === "humans" ? "" : ", oracle given information " + number(episode.oracle_given_information));
    return element("section", {class: "chat", "aria-label": WHO[episode.player]},
      element("h4", {}, WHO[episode.player] + (episode.player === "training" ? ", step " + episode.step : "")),
      element("p", {class: "caption"}, facts + "."),
      element("div", {class: "boards scroll", tabindex: "0", role: "region", "aria-label": "Boards"},
        board(episode, AGENT, episode.player === "humans" ? "First player" : "Model"), board(episode, "player-2", episode.player === "humans" ? "Second player" : "Partner")),
      ...turns);
  }

  function open() {
    const episode = linked();
    mark();
    if (!episode) {
      view.replaceChildren(element("p", {class: "caption"}, /^#dialogue=/.test(location.hash) ?
        "That episode is not in this sample." : "Choose an episode from the list."));
      return;
    }
    const other = {base: "trained", trained: "base"}[episode.player];
    const pair = data.episodes.filter((e) => e.game === episode.game && (e.id === episode.id || e.player === other));
    view.replaceChildren(element("h3", {tabindex: "-1"}, "Game " + episode.game), element("div", {class: "pair"}, ...pair.map(show)));
    if (document.activeElement && list.contains(document.activeElement)) view.firstChild.focus({preventScroll: true});
  }

  const players = [...new Set(data.episodes.map((e) => e.player))];
  const steps = [...new Set(data.episodes.filter((e) => e.player === "training").map((e) => e.step))].sort((a, b) => a - b);
  controls.elements.player.append(...players.map((p) => element("option", {value: p}, WHO[p])));
  controls.elements.step.append(...steps.map((s) => element("option", {value: s}, String(s))));
  controls.addEventListener("input", fill);
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("reset", () => setTimeout(fill));
  window.addEventListener("hashchange", () => {
    open();
    if (linked()) document.getElementById("browser").scrollIntoView();
  });
  fill();
  open();
  if (linked()) document.getElementById("browser").scrollIntoView();
})();
