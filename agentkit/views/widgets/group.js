// The trajectories of one training task at one step: a table, and the best beside the worst or beside any other.

const OWN_STYLE = `
.ak .table {overflow-x:auto; padding:4px 12px}
.ak table {border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; font-size:13.5px}
.ak :is(th, td) {text-align:right; padding:4px 8px; border-bottom:1px solid var(--line); white-space:nowrap; background:none;
  vertical-align:top; color:inherit; font-size:inherit}
.ak th {font-weight:600; color:var(--soft)}
.ak :is(th, td).words {text-align:left; white-space:normal; overflow-wrap:anywhere; min-width:7em; max-width:24em}
.ak tbody tr {cursor:pointer; background:none}
.ak tbody tr:hover {background:var(--panel)}
.ak tbody tr[aria-selected=true] {background:var(--panel); box-shadow:inset 3px 0 var(--accent)}
.ak .meter {display:inline-block; width:4.5em; height:.7em; margin-left:8px; position:relative;
  background:linear-gradient(var(--line), var(--line)) center/1px 100% no-repeat}
.ak .meter i {position:absolute; top:0; bottom:0; border-radius:2px}
.ak .meter .up {left:50%; background:rgb(var(--cool))}
.ak .meter .down {right:50%; background:rgb(var(--warm))}
@media (max-width: 800px) {
  .ak .table table {font-size:12px}
  .ak .table :is(th, td) {padding:3px 4px}
  .ak .table .meter, .ak .table :is(th, td):nth-last-child(n+2):nth-last-child(-n+4) {display:none} /* calls, failed, tokens */
}
.ak .contrast {padding:8px 12px 0}
.ak .contrast h3 {margin-bottom:4px}
.ak .contrast table {width:auto; min-width:min(100%,34em)}
.ak .contrast tr {cursor:auto}
.ak .contrast tbody tr:hover {background:none}
.ak .contrast mark {background:var(--mark); color:var(--ink); border-radius:4px; padding:0 4px}
`;

const scored = (rollouts) => rollouts.filter((rollout) => rollout.reward !== null);
const bestOf = (rollouts) => scored(rollouts).reduce((best, r) => (!best || r.reward > best.reward ? r : best), null);
const worstOf = (rollouts) => scored(rollouts).reduce((worst, r) => (!worst || r.reward < worst.reward ? r : worst), null);
const isDead = ({ rollouts }) => unique(scored(rollouts).map((rollout) => rollout.reward)).length <= 1;

/** A number with a bar from the middle: right for more than 0, left for less. */
function meter(value, most) {
  if (value === null) return [node("span", "soft", "–")];
  const bar = node("i", value > 0 ? "up" : "down");
  bar.style.width = `${most ? (50 * Math.abs(value)) / most : 0}%`;
  return [signed(value), node("span", "meter", "", bar)];
}

function row(tag, cells, words = []) {
  const line = node("tr");
  cells.forEach((cell, i) => {
    const box = node(tag, words.includes(i) ? "words text" : "", typeof cell === "string" ? cell : "");
    if (typeof cell !== "string") box.append(...cell);
    line.append(box);
  });
  return line;
}

function drawTable(group, names, chosen, choose) {
  const most = Math.max(0, ...group.rollouts.map((rollout) => Math.abs(rollout.advantage ?? 0)));
  const head = ["sample", "verdict", "reward", "advantage", "answer", ...names, "turns", "calls", "failed", "tokens", "end"];
  const words = [4, head.length - 1];
  const body = node("tbody");
  for (const rollout of group.rollouts) {
    const parts = new Map(rollout.components);
    const line = row(
      "td",
      [
        String(rollout.sample),
        [node("span", tone(rollout.right), verdict(rollout.right))],
        number(rollout.reward),
        meter(rollout.advantage, most),
        short(rollout.answer ?? "(none)"),
        ...names.map((name) => (parts.has(name) ? number(parts.get(name)) : "–")),
        ...[rollout.turns.length, rollout.calls, rollout.failed, rollout.tokens].map(String),
        rollout.stop.replace("ended with an ", ""),
      ],
      words,
    );
    line.tabIndex = 0;
    line.setAttribute("aria-selected", String(rollout === chosen));
    line.title = "compare with the best";
    line.onclick = () => choose(rollout);
    line.onkeydown = (event) => event.key === "Enter" && choose(rollout);
    body.append(line);
  }
  const table = label(node("table", "", "", node("thead", "", "", row("th", head, words)), body), "trajectories");
  return node("div", "table", "", table);
}

/** The beginning of a text. */
const short = (text) => (text.length > 40 ? `${text.slice(0, 40)}…` : text);

/** What tells one trajectory from another: only what differs. */
function differences(a, b, names) {
  const [one, two] = [a, b].map((rollout) => new Map(rollout.components));
  const part = (components, name) => (components.has(name) ? number(components.get(name)) : "–");
  const split = divergence([a, b]);
  const action = (rollout) => rollout.turns[split.turn]?.actions[split.action] ?? "(none)";
  const rows = [
    ["reward", number(a.reward), number(b.reward)],
    ...names.map((name) => [`reward component ${name}`, part(one, name), part(two, name)]),
    ["answer", a.answer ?? "(none)", b.answer ?? "(none)"],
    ["end", a.stop, b.stop],
    ["turns", String(a.turns.length), String(b.turns.length)],
    ["tool calls", String(a.calls), String(b.calls)],
    ["failed calls", String(a.failed), String(b.failed)],
    ["tokens", String(a.tokens), String(b.tokens)],
  ].filter(([, left, right]) => left !== right);
  if (split) rows.push([`first different action (turn ${split.turn + 1})`, action(a), action(b)]);
  return rows;
}

function drawContrast(best, other, titles, names) {
  const box = node("div", "contrast", "", node("h3", "", `What tells ${titles[0]} from ${titles[1]}`));
  const contrasts = differences(best, other, names);
  if (!contrasts.length) {
    box.append(node("div", "soft", "Nothing: both did the same and got the same."));
    return box;
  }
  const body = node("tbody", "", "", ...contrasts.map((cells) => row("td", cells, [0, 1, 2])));
  const head = row("th", ["", ...titles], [0, 1, 2]);
  box.append(label(node("table", "", "", node("thead", "", "", head), body), "differences"));
  return box;
}

function drawGroup(state, group) {
  const { rollouts } = group;
  const names = unique(rollouts.flatMap((rollout) => rollout.components.map(([name]) => name)));
  const [best, worst] = [bestOf(rollouts), worstOf(rollouts)];
  const other = state.other ?? worst;
  const facts = [group.id, group.policy, group.step === null ? "" : `step ${group.step}`, group.family ? `family ${group.family}` : ""];
  const head = node("div", "task", "", node("div", "soft text", [...facts, group.difficulty ?? ""].filter(Boolean).join(" · ")));
  if (group.prompt !== undefined) {
    const gold = node("div", "", "", node("span", "soft", "gold answer "), node("b", "text", group.answer));
    head.append(node("div", "prompt text", group.prompt), gold);
  }
  const right = rollouts.filter((rollout) => rollout.right).length;
  const spread = `reward ${number(group.mean)} on average, standard deviation ${number(group.std)}`;
  head.append(node("div", "", `${rollouts.length} ${rollouts.length === 1 ? "trajectory" : "trajectories"}, ${right} right · ${spread}`));
  if (isDead(group)) {
    const why = scored(rollouts).length ? "All rewards are equal" : "No trajectory has a reward";
    const taught = rollouts.some((rollout) => rollout.advantage); // by its turns or components
    head.append(node("div", "wrong", `${why}${taught ? "" : ": this group teaches nothing"}.`));
  }
  const choose = (rollout) => {
    state.other = rollout;
    state.draw();
  };
  const drawn = [head, drawTable(group, names, other, choose)];
  if (!best || rollouts.length < 2) return drawn;
  const compared = other === best ? rollouts.find((rollout) => rollout !== best) : other;
  const rank = (rollout) => (isDead(group) ? "" : rollout === best ? " (the best)" : rollout === worst ? " (the worst)" : "");
  const title = (rollout) => `sample ${rollout.sample}${rank(rollout)}`;
  const titles = [title(best), title(compared)];
  const odd = oddComponents([best, compared]);
  const heads = [best, compared].map((rollout, i) => {
    const name = node("h3", "", titles[i], node("span", tone(rollout.right), verdict(rollout.right)));
    if (rollout.advantage !== null) name.append(node("span", "soft", `advantage ${signed(rollout.advantage)}`));
    return label(node("section", "", "", name, drawAnswer(rollout), drawComponents(rollout, odd)), titles[i]);
  });
  return [...drawn, drawContrast(best, compared, titles, names), drawColumns(titles, heads, [best, compared], true)];
}

/** Draw the view into an element. */
function show(element, { groups }) {
  const root = makeRoot(element);
  const state = { at: 0, chosen: groups, other: null };
  const kinds = [
    ["all groups", () => true],
    ["groups whose rewards differ", (group) => !isDead(group)],
    ["groups with equal rewards", isDead],
  ];
  const counter = node("output");
  const body = node("div");
  const go = (at) => {
    state.at = Math.min(Math.max(at, 0), Math.max(state.chosen.length - 1, 0));
    state.other = null;
    state.draw();
    root.scrollTop = 0;
  };
  const previous = button("←", "previous group (arrow left)", () => go(state.at - 1));
  const next = button("→", "next group (arrow right)", () => go(state.at + 1));
  const kind = select("groups", kinds.map(([text]) => text), () => {
    state.chosen = groups.filter(kinds[kind.value][1]);
    go(0);
  });
  state.draw = () => {
    const group = state.chosen[state.at];
    counter.textContent = group ? `group ${state.at + 1} of ${state.chosen.length}` : "no group";
    previous.disabled = state.at === 0;
    next.disabled = state.at >= state.chosen.length - 1;
    const focused = body.contains(document.activeElement);
    body.replaceChildren(...(group ? drawGroup(state, group) : [node("div", "none", "No group is of this kind.")]));
    if (focused) root.focus({ preventScroll: true });
  };
  listenForKeys(root, { ArrowLeft: () => go(state.at - 1), ArrowRight: () => go(state.at + 1) });
  root.append(node("div", "bar", "", previous, next, counter, kind), body);
  go(0);
  const [theme, stop] = followTheme(root);
  return { theme, stop };
}

async function render({ model, el }) {
  return show(el, await unpack(model.get("data")[0])).stop;
}

export default { render };
