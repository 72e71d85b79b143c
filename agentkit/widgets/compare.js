// Trajectories side by side. Draws the anywidget (default export) and the static page (show).
// Everything in the payload is data: it reaches the page through textContent only.

const STYLE = `
.ak {--bg:#fff;--panel:#f6f8fa;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--accent:#0969da;--good:#1a7f37;
  --bad:#c4232e; --mark:#fff3cf; color-scheme:light;
  box-sizing:border-box; height:100%; max-height:100vh; overflow:auto; outline:none;
  font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif; color:var(--ink); background:var(--bg)}
.ak[data-theme=dark] {--bg:#111417;--panel:#1a1f25;--ink:#e6e9ee;--soft:#9aa4b2;--line:#343b44;--accent:#6cb0ff;
  --good:#4cc262;--bad:#ff8078; --mark:#3a3113; color-scheme:dark}
.ak *, .ak *::before {box-sizing:border-box}
.ak .bar {position:sticky; top:0; z-index:1; display:flex; flex-wrap:wrap; gap:8px; align-items:center;
  padding:8px 12px; background:var(--bg); border-bottom:1px solid var(--line)}
.ak .bar output {color:var(--soft); font-variant-numeric:tabular-nums; min-width:8em}
.ak :is(button, select, input) {font:inherit; color:inherit; background:var(--panel); border:1px solid var(--line);
  border-radius:6px; padding:3px 9px; max-width:100%}
.ak button {cursor:pointer}
.ak button:disabled {opacity:.45; cursor:default}
.ak button[aria-pressed=true] {border-color:var(--accent); box-shadow:inset 0 0 0 1px var(--accent)}
.ak :is(button, select, input, summary):focus-visible {outline:2px solid var(--accent); outline-offset:1px}
.ak input {flex:1 1 10em; min-width:10em}
.ak .task {padding:12px 12px 4px}
.ak .prompt {font-size:16px; white-space:pre-wrap}
.ak .soft {color:var(--soft)}
.ak .text {white-space:pre-wrap; overflow-wrap:anywhere; unicode-bidi:isolate}
.ak .columns {display:grid; grid-auto-flow:column; grid-auto-columns:minmax(270px,1fr); gap:12px; padding:8px 12px 16px;
  overflow-x:auto; align-items:start}
.ak section {border:1px solid var(--line); border-radius:8px; padding:10px 12px; min-width:0}
.ak h3 {display:flex; flex-wrap:wrap; gap:4px 10px; align-items:baseline; margin:0; font-size:15px}
.ak h3 .soft {font-weight:normal; font-size:13px}
.ak .right {color:var(--good); font-weight:600}
.ak .wrong {color:var(--bad); font-weight:600}
.ak .samples {display:flex; flex-wrap:wrap; align-items:baseline; gap:4px; margin:6px 0}
.ak .samples button {padding:0 7px; font-size:13px}
.ak .answer {margin:6px 0; padding:6px 10px; background:var(--panel); border-radius:6px}
.ak .facts {font-size:13px; color:var(--soft); margin:4px 0 8px}
.ak .turn {margin-top:8px; padding:6px 0 0 10px; border-left:3px solid var(--line)}
.ak .turn.diverges {border-left-color:#d9a514}
.ak .turn > header {font-size:13px; color:var(--soft)}
.ak .diverges > header b {font-weight:600; color:var(--ink); background:var(--mark); border-radius:4px; padding:0 6px}
.ak details {margin:4px 0}
.ak summary {cursor:pointer; overflow-wrap:anywhere}
.ak summary code {font:13px/1.5 ui-monospace,Menlo,Consolas,monospace; unicode-bidi:isolate; color:inherit;
  background:none}
.ak pre {margin:3px 0 6px; padding:6px 8px; max-height:15em; overflow:auto; background:var(--panel); border-radius:6px;
  font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace; white-space:pre-wrap; overflow-wrap:anywhere; color:inherit}
.ak .none {padding:24px 12px; color:var(--soft)}
`;

/** An element with a class, text (never markup) and children. */
function node(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

const mark = (right) => (right === null ? "–" : right ? "✓" : "✗");
const verdict = (right) => (right === null ? "not scored" : right ? "✓ right" : "✗ wrong");
const tone = (right) => (right === null ? "soft" : right ? "right" : "wrong");
const number = (value) => (value === null ? "not scored" : String(Math.round(value * 1000) / 1000));

// ---- choosing tasks ----
function outcomes(policies) {
  const [a, b] = [policies[0], policies[policies.length - 1]];
  const first = (task) => task.columns[0].solved;
  const last = (task) => task.columns[task.columns.length - 1].solved;
  const all = ["all outcomes", () => true];
  if (policies.length === 1) return [all, ["right", first], ["wrong", (t) => first(t) === false]];
  return [
    all,
    [`flipped to right (${a} ✗, ${b} ✓)`, (t) => first(t) === false && last(t) === true],
    [`flipped to wrong (${a} ✓, ${b} ✗)`, (t) => first(t) === true && last(t) === false],
    [policies.length > 2 ? "all wrong" : "both wrong", (t) => t.columns.every((c) => c.solved === false)],
    [policies.length > 2 ? "all right" : "both right", (t) => t.columns.every((c) => c.solved === true)],
  ];
}

const haystacks = new WeakMap();
const texts = (value) =>
  typeof value === "string" ? [value] : value && typeof value === "object" ? Object.values(value).flatMap(texts) : [];
function contains(task, words) {
  if (!words) return true;
  if (!haystacks.has(task)) haystacks.set(task, texts(task).join("\n").toLowerCase());
  return haystacks.get(task).includes(words.toLowerCase());
}

/** The sample shown first: one that ended the way the task counts, so that a solved task opens on a success. */
function typical(column) {
  const found = column.samples.findIndex((sample) => sample.right === column.solved);
  return Math.max(found, 0);
}

/** The first turn in which the shown trajectories call or say something different; -1 where there is none. */
function divergence(shown) {
  const trajectories = shown.filter(Boolean);
  if (trajectories.length < 2) return -1;
  const length = Math.max(...trajectories.map((t) => t.turns.length));
  for (let i = 0; i < length; i++) {
    const said = trajectories.map((t) => {
      const turn = t.turns[i];
      if (!turn) return "";
      return JSON.stringify(turn.results.length ? turn.results.map((r) => [r.name, r.arguments]) : turn.text.trim());
    });
    if (new Set(said).size > 1) return i;
  }
  return -1;
}

// ---- drawing one task ----
function prose(text) {
  return text
    .replace(/<tool_call>[\s\S]*?(<\/tool_call>|$)/g, "")
    .replace(/<\|[^|<>]*\|>/g, "")
    .trim();
}

function fold(open, summary, text) {
  const details = node("details", "", "", node("summary", "", "", ...summary), node("pre", "text", text || "(empty)"));
  details.open = open;
  return details;
}

function drawTurn(turn, i, diverges, open) {
  const header = node("header", "", `turn ${i + 1} `);
  if (diverges) header.append(node("b", "", "first difference"));
  const box = node("div", diverges ? "turn diverges" : "turn", "", header);
  const words = prose(turn.text);
  if (words) box.append(node("div", "text", words));
  for (const result of turn.results) {
    const given = result.arguments === "{}" ? "" : result.arguments;
    const call = node("code", "", `${result.name || "malformed call"} ${given}`);
    const outcome = node("span", tone(result.ok), result.ok ? "✓ " : "✗ failed ");
    box.append(fold(open, [outcome, call], result.observation));
  }
  const bare = !turn.results.length;
  if (!bare || !words) box.append(fold(bare, [node("small", "soft", "sampled text")], turn.text));
  return box;
}

function drawColumn(state, name, column, p, diverging) {
  const trajectory = column.samples[state.samples[p]];
  const section = node("section");
  section.setAttribute("aria-label", name);
  const head = node("h3", "", name);
  section.append(head);
  if (!trajectory) {
    head.append(node("span", "soft", "no trajectory of this task"));
    return section;
  }
  head.append(node("span", tone(trajectory.right), verdict(trajectory.right)));
  if (column.count > 1 && column.rate !== null) {
    head.append(node("span", "soft", `${Math.round(100 * column.rate)} % of ${column.count} samples right`));
    section.append(drawSamples(state, column, p));
  }
  const answer = node("div", "answer", "", node("span", "soft", "answer "));
  answer.append(node("span", "text", trajectory.answer ?? "(none)"));
  if (trajectory.why) answer.append(node("div", "soft text", trajectory.why));
  const parts = Object.entries(trajectory.components).map(([part, value]) => `${part} ${number(value)}`);
  const facts = [`stopped: ${trajectory.stop.replaceAll("_", " ")}`, `${trajectory.tokens} tokens`];
  facts.push(`reward ${number(trajectory.reward)}${parts.length ? ` (${parts.join(", ")})` : ""}`);
  section.append(answer, node("div", "facts text", facts.join(" · ")));
  trajectory.turns.forEach((turn, i) => section.append(drawTurn(turn, i, i === diverging, state.open)));
  return section;
}

function drawSamples(state, column, p) {
  const row = node("div", "samples", "", node("small", "soft", "samples"));
  column.samples.forEach((sample, k) => {
    const button = node("button", "", `${sample.sample} ${mark(sample.right)}`);
    button.setAttribute("aria-label", `sample ${sample.sample}, ${verdict(sample.right)}`);
    button.setAttribute("aria-pressed", String(k === state.samples[p]));
    button.onclick = () => {
      state.samples[p] = k;
      state.draw();
    };
    row.append(button);
  });
  return row;
}

function drawTask(state, policies, task) {
  const labels = [task.id, `category ${task.family}`, task.difficulty].join(" · ");
  const gold = node("div", "", "", node("span", "soft", "gold answer "), node("b", "text", task.answer));
  const head = node("div", "task", "", node("div", "soft text", labels), node("div", "prompt text", task.prompt), gold);
  const diverging = divergence(task.columns.map((column, p) => column.samples[state.samples[p]]));
  const columns = task.columns.map((column, p) => drawColumn(state, policies[p], column, p, diverging));
  return [head, node("div", "columns", "", ...columns)];
}

// ---- the whole view ----
function select(label, options) {
  const element = node("select");
  element.setAttribute("aria-label", label);
  options.forEach((text, i) => {
    const option = node("option", "", text);
    option.value = String(i);
    element.append(option);
  });
  return element;
}

function button(text, label, act) {
  const element = node("button", "", text);
  element.setAttribute("aria-label", label);
  element.onclick = act;
  return element;
}

/** Follow the page's theme: JupyterLab's where it is seen or told, else the system's. Returns a function that stops. */
function followTheme(root) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let told = null;
  const apply = () => {
    const light = document.body.dataset.jpThemeLight;
    const isDark = light === undefined ? dark.matches : light !== "true";
    root.dataset.theme = told ?? (isDark ? "dark" : "light");
  };
  const hear = (event) => {
    if (event.source !== window.parent || !["light", "dark"].includes(event.data?.agentkitTheme)) return;
    told = event.data.agentkitTheme;
    apply();
  };
  const observer = new MutationObserver(apply);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  dark.addEventListener("change", apply);
  if (window.parent !== window) window.addEventListener("message", hear);
  apply();
  return () => {
    observer.disconnect();
    dark.removeEventListener("change", apply);
    window.removeEventListener("message", hear);
  };
}

/** Draw the view into an element. `moved` hears the id of the task on screen. */
function show(element, payload, moved = () => {}) {
  const { policies, tasks } = payload;
  const unique = (key) => [...new Set(tasks.map((task) => task[key]))];
  const [outcome, families, difficulties] = [outcomes(policies), unique("family"), unique("difficulty")];
  const state = { at: 0, chosen: tasks, samples: [], open: true };

  const root = node("div", "ak", "", node("style", "", STYLE));
  root.tabIndex = 0;
  const byOutcome = select("outcome", outcome.map(([text]) => text));
  const byFamily = select("category", ["all categories", ...families.map((f) => `category ${f}`)]);
  const byDifficulty = select("difficulty", ["all difficulties", ...difficulties]);
  const search = node("input");
  search.type = "search";
  search.placeholder = "search the texts";
  search.setAttribute("aria-label", "search the texts");
  const counter = node("output");
  const body = node("div");

  const go = (at) => {
    state.at = Math.min(Math.max(at, 0), Math.max(state.chosen.length - 1, 0));
    state.samples = state.chosen.length ? state.chosen[state.at].columns.map(typical) : [];
    state.draw();
    body.parentElement.scrollTop = 0;
    if (state.chosen.length) moved(state.chosen[state.at].id);
  };
  const filter = () => {
    state.chosen = tasks.filter(
      (task) =>
        outcome[byOutcome.value][1](task) &&
        (byFamily.value === "0" || task.family === families[byFamily.value - 1]) &&
        (byDifficulty.value === "0" || task.difficulty === difficulties[byDifficulty.value - 1]) &&
        contains(task, search.value.trim()),
    );
    go(0);
  };
  const previous = button("←", "previous task", () => go(state.at - 1));
  const next = button("→", "next task", () => go(state.at + 1));
  const folding = button("fold results", "fold or open all tool results", () => {
    state.open = !state.open;
    folding.textContent = state.open ? "fold results" : "open results";
    state.draw();
  });
  state.draw = () => {
    const task = state.chosen[state.at];
    counter.textContent = task ? `task ${state.at + 1} of ${state.chosen.length}` : "no task";
    previous.disabled = state.at === 0;
    next.disabled = state.at >= state.chosen.length - 1;
    const focused = body.contains(document.activeElement);
    const shown = task ? drawTask(state, policies, task) : [node("div", "none", "No task fits these filters.")];
    body.replaceChildren(...shown);
    if (focused) root.focus({ preventScroll: true }); // the focused button is gone; the arrow keys must go on working
  };
  for (const choice of [byOutcome, byFamily, byDifficulty]) choice.onchange = filter;
  search.oninput = filter;
  root.addEventListener("keydown", (event) => {
    if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    go(state.at + by);
  });
  const bar = node("div", "bar", "", previous, next, counter, byOutcome, byFamily, byDifficulty, search, folding);
  root.append(bar, body);
  element.append(root);
  go(0);
  const stop = followTheme(root);
  const open = (id) => {
    const at = state.chosen.findIndex((task) => task.id === id);
    if (at >= 0 && at !== state.at) go(at);
  };
  return { open, stop };
}

function render({ model, el }) {
  const view = show(el, model.get("payload"), (id) => {
    model.set("task_id", id);
    model.save_changes();
  });
  const follow = () => view.open(model.get("task_id"));
  model.on("change:task_id", follow);
  return () => {
    model.off("change:task_id", follow);
    view.stop();
  };
}

export default { render };
