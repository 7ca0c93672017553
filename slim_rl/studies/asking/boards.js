// The boards above a dialogue: what each seat sees, which cells were asked for, and the assignment in the end.
"use strict";
window.dialogueExtra = (episode, data, element) => {
  const {boards, asked, final} = episode.extra, {reviewers, papers} = data.shared;
  const uses = new Map(asked.map(([r, p, use], i) => [r + "," + p, (i + 1) + ": " + use]));

  // A text, such as 45±5, is a score known roughly.
  const kind = value => value === null ? "" : typeof value === "string" ? "rough" : "known";

  function board(seat, cells, own) {
    const head = element("tr", {}, element("td", {}), ...cells.map((_, p) => element("th", {scope: "col"}, papers[p])));
    const rows = cells.map((row, r) => element("tr", {}, element("th", {scope: "row"}, reviewers[r].split(" ")[0]),
      ...row.map((value, p) => {
        const question = own ? uses.get(r + "," + p) : undefined;
        const assigned = final && final[r] === p;
        const cell = element("td", {class: [kind(value), question && "asked", assigned && "final"].filter(Boolean).join(" ")},
          (value === null ? "?" : String(value)) + (assigned ? " ★" : ""));
        const says = [{known: "seen", rough: "known roughly"}[kind(value)] || "not seen", question && "asked, question " + question, assigned && "assigned in the end"];
        cell.title = reviewers[r] + ", " + papers[p] + ": " + says.filter(Boolean).join("; ");
        return cell;
      })));
    return element("table", {class: "board"}, element("caption", {}, seat + " sees"), element("thead", {}, head), element("tbody", {}, ...rows));
  }

  const shown = episode.seats.map((seat, i) => {
    const cells = boards[seat.split(":")[0]];
    return cells ? board(seat, cells, i === episode.own) : element("p", {class: "caption"}, seat + " sees: not recorded.");
  });
  return [element("div", {class: "boards scroll", tabindex: "0", role: "region", "aria-label": "Boards"}, ...shown)];
};
