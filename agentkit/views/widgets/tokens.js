// Mask X-ray: one trajectory token by token, coloured by one quantity at a time.

const OWN_STYLE = `
.ak .bar label {display:flex; gap:6px; align-items:center; color:var(--soft)}
.ak .legend {display:flex; flex-wrap:wrap; gap:4px 14px; align-items:center; font-size:13px; color:var(--soft)}
.ak .legend span {white-space:nowrap}
.ak .legend i {display:inline-block; width:7em; height:.9em; vertical-align:-.1em; border:1px solid var(--line); margin:0 5px}
.ak .legend .key {padding:0 4px; border-radius:3px 3px 0 0; margin-right:5px; color:var(--ink)}
.ak .detail {flex:1 1 100%; min-height:3em; display:flex; flex-wrap:wrap; gap:0 16px; align-content:start;
  font-size:13px; font-variant-numeric:tabular-nums; color:var(--soft)}
.ak .detail b {font-weight:600; color:var(--ink)}
.ak .detail code {font:13px ui-monospace,Menlo,Consolas,monospace; background:var(--panel); color:var(--ink); padding:1px 5px;
  border-radius:4px; white-space:pre-wrap; unicode-bidi:isolate; overflow-wrap:anywhere}
.ak .fault {margin:8px 12px 0; padding:6px 10px; border:1px solid var(--bad); border-radius:6px; color:var(--bad)}
.ak .body {padding:4px 12px 16px}
.ak .part {margin:10px 0; content-visibility:auto; contain-intrinsic-size:auto 6em}
.ak .part > header, .ak .part > summary {font-size:13px; color:var(--soft)}
.ak .tokens {font:13px/2 ui-monospace,Menlo,Consolas,monospace; white-space:pre-wrap; overflow-wrap:anywhere; padding:2px 8px;
  border-left:3px solid var(--line); border-radius:2px}
.ak .model > .tokens {border-left-color:var(--accent)}
.ak .tokens span {--w:0; color:var(--soft); padding:2px 0; margin-right:1px; border-radius:3px 3px 0 0; cursor:default;
  unicode-bidi:isolate; background:rgb(var(--hue,128 128 128) / calc(var(--w) * var(--most)))}
.ak .tokens .on, .ak .legend .on {color:var(--ink); box-shadow:inset 0 -2px var(--accent)}
.ak .tokens .bad, .ak .legend .bad {color:var(--ink); box-shadow:inset 0 0 0 2px var(--bad)}
.ak .tokens .at {outline:2px solid var(--ink); outline-offset:1px}
`;

const COOL = "var(--cool)";
const WARM = "var(--warm)";
const ADVANTAGE = "advantage (mean of the trajectory)"; // some estimators give each turn its own
const CHUNK = 3000; // tokens of one part drawn at once
const [LEAST, MOST] = [1, 5]; // nats: how unlikely a token is at the full colour, by what the trajectory has

/** The quantities there are values for: name, unit, value by token, the ends of the scale. */
function quantities(tokens) {
  const offered = [{ name: "action mask", value: (i) => (tokens.mask[i] ? 1 : null), scale: "mask" }];
  const add = (name, all, scale) => {
    const values = all.map((value, i) => (tokens.mask[i] ? value : null)); // colour says what is trained on
    const present = values.filter((value) => value !== null);
    if (!present.length) return;
    const most = present.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
    offered.push({ name, value: (i) => values[i], scale, most: scale === "low" ? Math.min(Math.max(most, LEAST), MOST) : most });
  };
  add("log-probability at sampling", tokens.old_logprob, "low");
  add(ADVANTAGE, tokens.advantage, "both");
  return offered;
}

/** Strength 0..1 and colour of a value. */
function shade({ scale, most }, value) {
  if (value === null) return [0, WARM];
  if (scale === "mask") return [0.45, COOL];
  return [most ? Math.min(Math.abs(value) / most, 1) : 0, scale === "both" && value > 0 ? COOL : WARM];
}

function drawLegend(quantity, hasFaults) {
  const key = (className, text, meaning) => node("span", "", "", node("span", `key ${className}`, text), meaning);
  const legend = label(node("div", "legend"), "legend");
  const { scale, most } = quantity;
  if (scale !== "mask") {
    const colours = scale === "both" ? `rgb(${WARM} / var(--most)), transparent, rgb(${COOL} / var(--most))` : `transparent, rgb(${WARM} / var(--most))`;
    const bar = node("i");
    bar.style.background = `linear-gradient(to right, ${colours})`;
    const ends = { low: ["0 (certain)", `${number(-most)} nats or less`], both: [number(-most), signed(most)] };
    const [left, right] = ends[scale];
    legend.append(node("span", "", left, bar, node("span", "", right)));
  }
  legend.append(key("on", "token", "sampled and trained on (mask 1)"), key("", "token", "not trained on (mask 0)"));
  if (hasFaults) legend.append(key("bad", "token", "trained on, yet no turn sampled it"));
  return legend;
}

const shownText = (text) => (text === "" ? "·" : visible(text).replaceAll("\n", "↵\n").replaceAll("\t", "→\t"));

/** Runs of tokens with one source and turn: [from, to). */
function parts(tokens) {
  const runs = [];
  for (let i = 0; i < tokens.id.length; i++) {
    const last = runs[runs.length - 1];
    if (last && last.source === tokens.source[i] && last.turn === tokens.turn[i]) last.to = i + 1;
    else runs.push({ source: tokens.source[i], turn: tokens.turn[i], from: i, to: i + 1 });
  }
  return runs;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function drawHead(payload) {
  const { tokens } = payload;
  const trained = tokens.mask.reduce((sum, mask) => sum + mask, 0);
  const prompt = tokens.source.filter((source) => source === "prompt").length;
  const facts = [
    `${count(tokens.id.length, "token")}: ${prompt} of the prompt, ${trained} sampled and trained on, ${tokens.id.length - prompt - trained} not trained on`,
  ];
  const sampled = tokens.old_logprob.filter((value, i) => value !== null && tokens.mask[i]);
  if (sampled.length) facts.push(`mean log-probability at sampling ${number(mean(sampled))}`);
  const name = [payload.task, payload.policy, `sample ${payload.sample}`];
  if (payload.step !== null) name.push(`step ${payload.step}`);
  const end = `stopped: ${payload.stop.replaceAll("_", " ")} · answer ${payload.answer ?? "(none)"} · reward ${number(payload.reward)}`;
  const head = node("div", "task", "", node("div", "prompt text", name.join(" · ")), node("div", "text", end));
  head.append(node("div", "soft", facts.join(" · ")));
  return head;
}

/** Draw the view into an element. */
function show(element, payload) {
  const { tokens } = payload;
  const kinds = quantities(tokens);
  const root = makeRoot(element);
  const spans = [];
  let [kind, at] = [kinds[0], -1];

  const paint = (i) => {
    const [strength, hue] = shade(kind, kind.value(i));
    spans[i].style.setProperty("--w", strength.toFixed(3));
    spans[i].style.setProperty("--hue", hue);
  };
  const drawToken = (i, isLast) => {
    const isBad = tokens.mask[i] && tokens.source[i] !== "model";
    const span = node("span", isBad ? "bad" : tokens.mask[i] ? "on" : "");
    const text = shownText(tokens.text[i]);
    span.textContent = isLast ? text.replace(/\n$/, "") : text; // no empty line at the end of a part
    span.dataset.i = String(i);
    spans[i] = span;
    paint(i);
    return span;
  };
  const fill = (box, from, to) => {
    const end = Math.min(from + CHUNK, to);
    for (let i = from; i < end; i++) box.append(drawToken(i, i === to - 1));
    if (end === to) return;
    const more = button(`show ${Math.min(CHUNK, to - end)} of ${to - end} more tokens`, "show more tokens of this part", () => {
      more.remove();
      fill(box, end, to);
    });
    box.append(more);
  };
  const drawPart = ({ source, turn, from, to }) => {
    const words = { prompt: "prompt, not sampled", model: "the model's turn", observation: "appended, not sampled" }[source];
    const title = `${turn === null ? "" : `turn ${turn + 1} · `}${words} · ${count(to - from, "token")}`;
    const isFolded = source === "prompt";
    const part = node(isFolded ? "details" : "div", `part ${source}`, "", node(isFolded ? "summary" : "header", "", title));
    const box = label(node("div", "tokens"), title);
    box.tabIndex = 0;
    part.append(box);
    if (!isFolded) fill(box, from, to);
    else part.ontoggle = () => part.open && !box.firstChild && fill(box, from, to);
    return part;
  };

  const detail = node("output", "detail");
  const describe = (i) => {
    const fact = (name, value) => node("span", "", `${name} `, node("b", "", value));
    const { mask, source, turn } = { mask: tokens.mask[i], source: tokens.source[i], turn: tokens.turn[i] };
    const facts = [node("code", "", shownText(tokens.text[i])), fact("position", String(i)), fact("id", String(tokens.id[i]))];
    facts.push(fact("source", source + (turn === null ? "" : `, turn ${turn + 1}`)), fact("mask", String(mask)));
    const old = tokens.old_logprob[i];
    if (old !== null) facts.push(fact("log-probability at sampling", number(old, 4)));
    if (tokens.advantage[i] !== null) facts.push(fact(ADVANTAGE, signed(tokens.advantage[i])));
    return facts;
  };
  const point = (i) => {
    if (!spans[i] || i === at) return;
    spans[at]?.classList.remove("at");
    at = i;
    spans[i].classList.add("at");
    detail.replaceChildren(...describe(i));
  };

  const legend = node("div");
  const colour = (index) => {
    kind = kinds[index];
    spans.forEach((_, i) => paint(i));
    legend.replaceChildren(drawLegend(kind, payload.faults.length > 0));
  };
  const choice = select("colour by", kinds.map(({ name }) => name), () => colour(Number(choice.value)));
  const chooser = node("label", "", "colour by", choice);
  detail.append("Point at a token, or step through them with the arrow keys, to see its ids and values.");
  const body = node("div", "body", "", ...parts(tokens).map(drawPart));
  if (!tokens.id.length) body.append(node("div", "none", "This trajectory has no tokens."));
  const over = (event) => event.target.dataset?.i && point(Number(event.target.dataset.i));
  body.addEventListener("pointerover", over);
  body.addEventListener("click", over);
  const step = (by) => {
    let i = at + by;
    while (i >= 0 && i < tokens.id.length && !spans[i]) i += by; // what is folded has no span yet
    point(i);
    spans[at]?.scrollIntoView({ block: "nearest" });
  };
  listenForKeys(root, { ArrowLeft: () => step(-1), ArrowRight: () => step(1) });
  const faults = payload.faults.map((fault) => node("div", "fault", fault));
  root.append(node("div", "bar", "", chooser, legend, detail), drawHead(payload), ...faults, body);
  colour(0);
  const [theme, stop] = followTheme(root);
  return { theme, stop };
}

async function render({ model, el }) {
  return show(el, await unpack(model.get("data")[0])).stop;
}

export default { render };
