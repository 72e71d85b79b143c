// What the views share; each view's own file follows it in one module.
// Colours come from the style sheet that all of agentkit shares (evaluation/style.css).
// Everything in a payload is data: it reaches the page through textContent, setAttribute("aria-label"), an image's
// alternative text and base64 in a data: address only.

const STYLE = `
.ak {--mark:light-dark(#fff0b3,#4a3c0c); --edge:light-dark(#b27d00,#d9a514); --cool:31 111 235; --warm:217 95 2; --most:.6;
  box-sizing:border-box; height:100%; max-height:100vh; overflow:auto; color:var(--ink); background:var(--bg)}
.ak[data-theme=dark] {--cool:88 166 255; --warm:255 159 67; --most:.42}
.ak *, .ak *::before {box-sizing:border-box}
.ak .bar {position:sticky; top:0; left:0; z-index:2; display:flex; flex-wrap:wrap; gap:6px 8px; align-items:center;
  padding:8px 12px; background:var(--bg); border-bottom:1px solid var(--line)}
.ak .bar output {color:var(--soft); font-variant-numeric:tabular-nums; min-width:8.5em}
.ak :is(button, select, input, textarea) {font:inherit; color:inherit; background:var(--panel); border:1px solid var(--line);
  border-radius:6px; padding:3px 9px; max-width:100%; margin:0}
.ak select {max-width:19em; text-overflow:ellipsis}
.ak button {cursor:pointer}
.ak :is(button, select):disabled {opacity:.45; cursor:default}
.ak button[aria-pressed=true] {border-color:var(--accent); box-shadow:inset 0 0 0 1px var(--accent)}
.ak:focus-visible, .ak :is(button, select, input, textarea, summary, tr, .tokens):focus-visible {
  outline:2px solid var(--accent); outline-offset:1px}
.ak:focus-visible {outline-offset:-2px}
.ak input {flex:1 1 9em; min-width:8em}
.ak .task {padding:12px 12px 4px; max-width:75em}
.ak .prompt {font-size:16px}
.ak .soft {color:var(--soft)}
.ak .text {white-space:pre-wrap; overflow-wrap:anywhere; unicode-bidi:isolate}
.ak .right {color:var(--good); font-weight:600}
.ak .wrong {color:var(--bad); font-weight:600}
.ak .none {padding:24px 12px; color:var(--soft)}
.ak .columns {display:grid; grid-template-columns:repeat(var(--columns),minmax(min(135px,42vw),1fr)); gap:8px 12px; padding:8px 12px 16px;
  overflow-x:auto}
.ak section {border:1px solid var(--line); border-radius:8px; padding:8px 12px; min-width:0}
.ak section.ended {border-style:dashed; color:var(--soft); font-size:13px}
.ak section.diverges {border-color:var(--edge)}
.ak h3 {display:flex; flex-wrap:wrap; gap:4px 10px; align-items:baseline; margin:0; font-size:15px; font-weight:600;
  overflow-wrap:anywhere; color:inherit}
.ak h3 .soft {font-weight:normal; font-size:13px}
.ak :is(.first, .same) {grid-column:1/-1; position:sticky; left:0; margin-top:4px; font-size:13px; color:var(--ink)}
.ak .same > summary {font-weight:600}
.ak .same > section {margin-top:8px; font-size:14px}
.ak .first b, .ak code.differs, .ak :is(code, .text) .differs {font-weight:600; color:var(--ink); background:var(--mark); border-radius:4px;
  padding:1px 6px; box-decoration-break:clone}
.ak .answer {margin:6px 0; padding:6px 10px; background:var(--panel); border-radius:6px}
.ak .facts {font-size:13px; color:var(--soft); margin:4px 0}
.ak .chips {display:flex; flex-wrap:wrap; gap:4px 6px; font-size:13px; margin:4px 0; align-items:baseline}
.ak .chips > span {border:1px solid var(--line); border-radius:10px; padding:0 8px; overflow-wrap:anywhere}
.ak .chips > .differs {background:var(--mark); border-color:var(--edge)}
.ak .turn {font-size:13px; color:var(--soft)}
.ak details {margin:4px 0}
.ak .state {display:flex; flex-wrap:wrap; gap:4px 14px; margin:6px 0; overflow-x:auto}
.ak .state pre {flex:1}
.ak .state table {border-collapse:collapse; font-size:13px; min-width:0; width:auto}
.ak .state :is(th, td) {text-align:left; padding:2px 8px; border-bottom:1px solid var(--line); max-width:24em}
.ak .state tr {cursor:auto}
.ak figure {margin:0; font-size:13px}
.ak figure img {display:block}
.ak figure img.drawn {width:min(100%,420px); height:auto; border-radius:6px}
.ak summary {cursor:pointer; overflow-wrap:anywhere}
.ak summary code {font:13px/1.5 ui-monospace,Menlo,Consolas,monospace; unicode-bidi:isolate; color:inherit; background:none}
.ak pre {margin:3px 0 6px; padding:6px 8px; max-height:15em; overflow:auto; background:var(--panel); border-radius:6px;
  font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace; white-space:pre-wrap; overflow-wrap:anywhere; color:inherit}
`;

// Control characters, invisible ones, those that turn the reading direction, and halves of a character.
const ODD =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

const PILED = /(\p{M}{4})\p{M}+/gu; // marks over one letter, which would paint over other lines

/** The text with odd characters spelled out by their number, so that none of them acts or hides. */
function visible(text) {
  const code = (character) => character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
  return text
    .replaceAll("\r\n", "\n")
    .replace(ODD, (character) => `\u2039U+${code(character)}\u203a`)
    .replace(PILED, (marks, kept) => `${kept}\u2039${marks.length - kept.length} more marks\u203a`);
}

/** An element with a class, text (never markup) and children. */
function node(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = visible(text);
  element.append(...children);
  return element;
}

const label = (element, text) => {
  element.setAttribute("aria-label", visible(text));
  return element;
};

function button(text, help, act) {
  const element = label(node("button", "", text), help);
  element.type = "button";
  element.title = help;
  element.onclick = act;
  return element;
}

function select(name, options, act) {
  const element = label(node("select"), name);
  element.title = name;
  options.forEach((text, i) => {
    const option = node("option", "", text);
    option.value = String(i);
    element.append(option);
  });
  element.onchange = act;
  return element;
}

const count = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
const unique = (values) => [...new Set(values)];
const verdict = (right) => (right === null ? "not scored" : right ? "✓ right" : "✗ wrong");
const tone = (right) => (right === null ? "soft" : right ? "right" : "wrong");
const number = (value, digits = 3) =>
  value === null || value === undefined ? "not scored" : String(Number(value.toFixed(digits))).replace("-", "−");
const signed = (value, digits = 3) => (value > 0 ? "+" : "") + number(value, digits);

// ---- trajectories, turn by turn ----
function prose(text) {
  return text
    .replace(/<tool_call>[\s\S]*?(<\/tool_call>|$)/g, "")
    .replace(/<\|[^|<>]*\|>/g, "")
    .trim();
}

/** Where trajectories first act differently: turn and action, both from 0; null where they never do. */
function divergence(trajectories) {
  if (trajectories.length < 2) return null;
  const most = Math.max(...trajectories.map((t) => t.turns.length));
  for (let turn = 0; turn < most; turn++) {
    const actions = trajectories.map((t) => t.turns[turn]?.actions ?? []);
    const longest = Math.max(...actions.map((list) => list.length));
    for (let action = 0; action < longest; action++) {
      if (unique(actions.map((list) => list[action])).length > 1) return { turn, action };
    }
  }
  return null;
}

function fold(open, summary, text) {
  const details = node("details", "", "", summary, node("pre", "text", text || "(empty)"));
  details.open = open;
  return details;
}

/** The state after a turn: text, a table, or images. */
function drawState({ text, columns, rows, images }) {
  const box = label(node("div", "state"), "state after this turn");
  if (text) box.append(node("pre", "text", text));
  if (rows) {
    const line = (tag) => (cells) => node("tr", "", "", ...cells.map((cell) => node(tag, "text", cell)));
    const body = node("tbody", "", "", ...rows.map(line("td")));
    box.append(node("table", "", "", node("thead", "", "", line("th")(columns)), body));
  }
  for (const [title, kind, data, width] of images ?? []) {
    const shown = node("img", width ? "" : "drawn");
    shown.src = `data:image/${kind};base64,${data}`;
    shown.alt = visible(title);
    if (width) shown.style.width = `${width}px`;
    box.append(node("figure", "", "", shown, node("figcaption", "soft text", title)));
  }
  return box;
}

/** How many turns at the beginning are the same in all trajectories, to the letter. */
function common(trajectories) {
  if (trajectories.length < 2) return 0;
  const [first, ...others] = trajectories.map((t) => t.turns.map((turn) => JSON.stringify(turn)));
  const odd = first.findIndex((turn, i) => others.some((turns) => turns[i] !== turn));
  return odd < 0 ? first.length : odd;
}

/** A call as code. Beside `rivals`, other turns that call the same tool, only the arguments that differ are marked. */
function drawCall(turn, k, rivals) {
  const [, , name, parts] = turn.results[k];
  const alike = rivals?.every((rival) => rival?.results[k]?.[2] === name);
  if (!alike || !parts.length) return node("code", rivals ? "differs" : "", turn.actions[k]);
  const code = node("code", "", `${name} {`);
  parts.forEach((part, n) => {
    const odd = rivals.some((rival) => !rival.results[k][3].includes(part));
    code.append(n ? ", " : "", node("span", odd ? "differs" : "", part));
  });
  code.append("}");
  return code;
}

/** One turn in its cell: what was said, each call with its result, the sampled text. `differs` is the action to mark,
 * `rivals` the same turn of all trajectories. */
function drawTurn(trajectory, i, name, differs, open, rivals) {
  const turn = trajectory.turns[i];
  const cell = label(node("section", differs >= 0 ? "diverges" : ""), `${name}, turn ${i + 1}`);
  if (!turn) {
    cell.classList.add("ended");
    cell.textContent = trajectory.stop;
    return i === trajectory.turns.length ? cell : node("div");
  }
  cell.append(node("div", "turn", `turn ${i + 1}`));
  const words = prose(turn.text);
  const bare = !turn.results.length;
  if (words) cell.append(node("div", "text", "", node("span", bare && differs >= 0 ? "differs" : "", words)));
  turn.results.forEach(([observation, ok], k) => {
    const outcome = node("span", tone(ok), ok ? "✓ " : "✗ failed ");
    const summary = node("summary", k === differs ? "differs" : "", "", outcome, drawCall(turn, k, k === differs ? rivals : null));
    cell.append(fold(open, summary, observation));
  });
  if (turn.state) cell.append(drawState(turn.state));
  const summary = node("summary", "", "", node("small", "soft", "sampled text"));
  cell.append(fold(bare && !words, summary, turn.text));
  return cell;
}

/** The turns that all trajectories begin with, once, folded until somebody asks for them. */
function drawSame(trajectory, turns, open) {
  const whole = turns === trajectory.turns.length ? "" : "first ";
  const summary = node("summary", "", turns === 1 ? `${whole}turn equal` : `${whole}${turns} turns equal`);
  return node("details", "same", "", summary, ...trajectory.turns.slice(0, turns).map((_, i) => drawTurn(trajectory, i, "all", -1, open)));
}

/** Columns of trajectories, aligned turn by turn under their heads: the common beginning folded, the first difference marked. */
function drawColumns(names, heads, trajectories, open) {
  const present = trajectories.filter(Boolean);
  const split = divergence(present);
  const same = common(present);
  const grid = node("div", "columns", "", ...heads);
  grid.style.setProperty("--columns", String(names.length));
  const most = Math.max(0, ...present.map((t) => t.turns.length));
  if (same) grid.append(drawSame(present[0], same, open));
  for (let i = same; i < most; i++) {
    const splits = split?.turn === i;
    const rivals = present.map((t) => t.turns[i]);
    if (splits) grid.append(node("div", "first", "", node("b", "", `first different action: turn ${i + 1}`)));
    trajectories.forEach((t, p) => {
      grid.append(t ? drawTurn(t, i, names[p], splits ? split.action : -1, open, rivals) : node("div"));
    });
  }
  return grid;
}

/** Reward components; those in `odd` (they differ between the columns) are marked. */
function drawComponents(trajectory, odd) {
  const chips = node("div", "chips", "", node("span", odd.has("reward") ? "differs" : "", `reward ${number(trajectory.reward)}`));
  for (const [name, value] of trajectory.components) {
    chips.append(node("span", odd.has(name) ? "differs" : "", `${name} ${number(value)}`));
  }
  return chips;
}

/** Names of the reward components (and "reward") that are not the same in all trajectories. */
function oddComponents(trajectories) {
  const values = trajectories.map((t) => new Map([["reward", t.reward], ...t.components]));
  const names = unique(values.flatMap((components) => [...components.keys()]));
  return new Set(names.filter((name) => unique(values.map((components) => components.get(name))).length > 1));
}

function drawAnswer(trajectory) {
  const box = node("div", "answer", "", node("span", "soft", "answer "), node("span", "text", trajectory.answer ?? "(none)"));
  if (trajectory.why) box.append(node("div", "soft text", trajectory.why));
  if (trajectory.ending) box.append(node("div", "", "", node("span", "soft", "state at the end "), node("span", "text", trajectory.ending)));
  return box;
}

// ---- the page around a view ----
/** Follow the page's theme: JupyterLab's where it is seen or told, else the system's. Returns [tell, stop]. */
function followTheme(root) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let hostTheme = null;
  const apply = () => {
    const light = document.body.dataset.jpThemeLight;
    const isDark = light === undefined ? dark.matches : light !== "true";
    root.dataset.theme = hostTheme ?? (isDark ? "dark" : "light");
  };
  const tell = (theme) => {
    if (theme !== "light" && theme !== "dark") return;
    hostTheme = theme;
    apply();
  };
  const observer = new MutationObserver(apply);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  dark.addEventListener("change", apply);
  apply();
  const stop = () => {
    observer.disconnect();
    dark.removeEventListener("change", apply);
  };
  return [tell, stop];
}

/** Arrow keys page and letters act, except while something is typed or chosen. A static page is all ours: it always hears. */
function listenForKeys(root, keys) {
  const hear = (event) => {
    const act = keys[event.key];
    const typing = event.target.closest?.("input, select, textarea");
    if (!act || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  (root.parentElement === document.body ? document : root).addEventListener("keydown", hear);
}

/** The root element of a view, with its style; it takes the focus so that keys reach it. */
function makeRoot(element) {
  const root = node("div", "ak", "", node("style", "", ""));
  root.firstChild.textContent = STYLE + OWN_STYLE;
  root.tabIndex = 0;
  element.append(root);
  return root;
}

async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function addressedTask(hash) {
  try {
    return new URLSearchParams(hash.slice(1)).get("task");
  } catch {
    return null;
  }
}

/** The page that holds a static view: relay.js where the view is in a frame, else the page itself. */
function surroundings(key, hear) {
  const storageKey = `agentkit-notes:${key}`;
  if (window.parent !== window) {
    const tell = (message) => window.parent.postMessage({ agentkit: message }, "*");
    window.addEventListener("message", ({ source, data }) => {
      if (source !== window.parent || !data?.agentkit) return;
      if (data.agentkit.hello) tell({ ready: true, key });
      else hear(data.agentkit);
    });
    tell({ ready: true, key });
    return { moved: (task) => tell({ task }), noted: (line) => tell({ key, note: line }), shown: () => tell({ shown: true }) };
  }
  const attempt = (act) => {
    try {
      return act();
    } catch {
      return null; // storage is switched off or full
    }
  };
  const stored = () => localStorage.getItem(storageKey) ?? "";
  const address = () => hear({ address: location.hash });
  window.addEventListener("hashchange", address);
  setTimeout(() => {
    hear({ stored: attempt(stored) });
    address();
  });
  return {
    moved: (task) => attempt(() => history.replaceState(null, "", `#task=${encodeURIComponent(task)}`)),
    noted: (line) => hear({ kept: attempt(() => (localStorage.setItem(storageKey, stored() + line), true)) === true }),
  };
}

/** Draw the static page. */
async function start() {
  const blocks = document.getElementById("payload").textContent.split("\n");
  const block = (i) => {
    const text = atob(blocks[i]);
    const bytes = new Uint8Array(text.length);
    for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
    return unpack(bytes);
  };
  const payload = await block(0);
  let page = { moved() {}, noted() {}, shown() {} };
  const view = show(document.body, payload, {
    block,
    moved: (id) => page.moved(id),
    noted: (line) => page.noted(line),
    shown: () => page.shown(),
  });
  page = surroundings(payload.key ?? "", (message) => {
    view.theme(message.theme);
    view.hear?.(message);
  });
}
