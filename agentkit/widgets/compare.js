// Trajectories side by side: tasks to page through, filters, deep links, notes.

const OWN_STYLE = `
.ak .samples {display:flex; flex-wrap:wrap; align-items:baseline; gap:4px; margin:6px 0}
.ak .samples button {padding:0 7px; font-size:13px}
.ak .note {display:flex; flex-wrap:wrap; gap:4px 10px; align-items:start; padding:4px 12px; max-width:75em}
.ak .note textarea {flex:1 1 20em; min-height:2.1em; field-sizing:content; max-height:12em; resize:vertical}
.ak .note output {color:var(--soft); font-size:13px; align-self:center}
.ak .note output.wrong {color:var(--bad)}
.ak .alarm {border:1px solid var(--edge); background:var(--mark); border-radius:10px; padding:0 8px; margin-left:6px}
`;

// ---- choosing tasks ----
const solved = (task, p) => task.columns[p].solved;

/** Filters by what happened, as [text, test]. Every earlier policy is compared with every later one. */
function outcomes(policies) {
  const last = policies.length - 1;
  const every = (right) => (task) => task.columns.every((column) => column.solved === right);
  const pairs = policies.flatMap((a, i) => policies.slice(i + 1).map((b, k) => [a, i, b, i + 1 + k]));
  const flip = ([a, i, b, j], to) => [
    `flipped to ${to ? "right" : "wrong"} (${a} ${to ? "✗" : "✓"}, ${b} ${to ? "✓" : "✗"})`,
    (task) => solved(task, i) === !to && solved(task, j) === to,
  ];
  const all = ["", "both ", "all "][Math.min(last, 2)];
  return [
    ["all outcomes", () => true],
    ...pairs.map((pair) => flip(pair, true)),
    ...pairs.map((pair) => flip(pair, false)),
    [`${all}wrong`, every(false)],
    [`${all}right`, every(true)],
  ];
}

const haystacks = new WeakMap();
const texts = (value) =>
  typeof value === "string" ? [value] : value && typeof value === "object" ? Object.values(value).flatMap(texts) : [];

function contains(task, words) {
  if (!words) return true;
  if (!haystacks.has(task)) haystacks.set(task, texts(task).join("\n").toLowerCase());
  return haystacks.get(task).includes(words);
}

/** The sample shown first: one that ended the way the task counts, so that a solved task opens on a success. */
function typical(column) {
  const found = column.samples.findIndex((sample) => sample.right === column.solved);
  return Math.max(found, 0);
}

// ---- drawing one task ----
function drawHead(state, name, column, p, odd) {
  const trajectory = column.samples[state.samples[p]];
  const section = label(node("section"), name);
  const head = node("h3", "", name);
  section.append(head);
  if (!trajectory) {
    head.append(node("span", "soft", "no trajectory of this task"));
    return section;
  }
  head.append(node("span", tone(trajectory.right), verdict(trajectory.right)));
  if (column.count > 1) {
    if (column.rate !== null) {
      head.append(node("span", "soft", `${Math.round(100 * column.rate)} % of ${column.count} samples right`));
    }
    section.append(drawSamples(state, column, p));
  }
  const facts = `stopped: ${trajectory.stop.replaceAll("_", " ")} · ${trajectory.tokens} tokens`;
  section.append(drawAnswer(trajectory), drawComponents(trajectory, odd), node("div", "facts", facts));
  return section;
}

function drawSamples(state, column, p) {
  const row = node("div", "samples", "", node("small", "soft", "samples"));
  const mark = (right) => (right === null ? "–" : right ? "✓" : "✗");
  column.samples.forEach((sample, k) => {
    const choose = () => {
      state.samples[p] = k;
      state.draw();
    };
    const choice = button(`${sample.sample} ${mark(sample.right)}`, `sample ${sample.sample}, ${verdict(sample.right)}`, choose);
    choice.setAttribute("aria-pressed", String(k === state.samples[p]));
    row.append(choice);
  });
  if (column.count > column.samples.length) row.append(node("small", "soft", `and ${column.count - column.samples.length} more`));
  return row;
}

function drawTask(state, policies, task) {
  const labels = node("div", "soft text", `${task.id} · category ${task.family} · ${task.difficulty}`);
  labels.append(...task.alarms.map((alarm) => node("span", "alarm", alarm)));
  const gold = node("div", "", "", node("span", "soft", "gold answer "), node("b", "text", task.answer));
  const head = node("div", "task", "", labels, node("div", "prompt text", task.prompt), gold);
  const shown = task.columns.map((column, p) => column.samples[state.samples[p]]);
  const odd = oddComponents(shown.filter(Boolean));
  const heads = task.columns.map((column, p) => drawHead(state, policies[p], column, p, odd));
  return [head, drawColumns(policies, heads, shown, state.open)];
}

// ---- notes ----
const newest = (a, b) => (!a || (b && b.at > a.at) ? b : a);

/** Notes by task id, and the box to write them in. `noted` hears all rows as JSON lines after each change. */
function makeNotes(rows, noted) {
  const notes = new Map(rows.map((row) => [row.task_id, row]));
  const box = label(node("textarea"), "note on this task");
  box.placeholder = "note on this task (n)";
  box.rows = 1;
  box.maxLength = 20000;
  const status = node("output");
  let task = "";
  let timer = 0;
  const lines = () => [...notes.values()].map((row) => `${JSON.stringify(row)}\n`).join("");
  const save = () => {
    clearTimeout(timer);
    if (box.value === (notes.get(task)?.text ?? "")) return;
    notes.set(task, { task_id: task, text: box.value, at: new Date().toISOString() });
    noted(lines(), [...notes.values()]);
  };
  const say = (text, wrong = false) => {
    status.textContent = visible(text);
    status.className = wrong ? "wrong" : "";
  };
  box.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(save, 400);
  };
  box.onblur = save;
  const open = (id) => {
    if (id === task) return;
    save();
    task = id;
    box.value = notes.get(id)?.text ?? "";
    say("");
  };
  const merge = (more) => {
    for (const row of more) notes.set(row.task_id, newest(notes.get(row.task_id), row));
    if (document.activeElement !== box) box.value = notes.get(task)?.text ?? "";
  };
  const has = (id) => Boolean(notes.get(id)?.text);
  return { box, status, say, open, merge, has, lines, save };
}

/** Rows out of stored JSON lines; what is not a note is left out. */
function readNotes(stored) {
  const rows = [];
  for (const line of (stored ?? "").split("\n").filter(Boolean)) {
    try {
      const row = JSON.parse(line);
      if (["task_id", "text", "at"].every((key) => typeof row[key] === "string")) rows.push(row);
    } catch {
      continue; // not ours
    }
  }
  return rows;
}

function download(name, text) {
  const link = node("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- the whole view ----
/** Draw the view into an element. `moved` hears the id of the task that was turned to, `noted` the notes. */
function show(element, payload, { moved, noted }) {
  const { policies, tasks } = payload;
  const outcome = outcomes(policies);
  const families = unique(tasks.map((task) => task.family));
  const difficulties = unique(tasks.map((task) => task.difficulty));
  const alarms = unique(tasks.flatMap((task) => task.alarms));
  const state = { at: 0, chosen: tasks, samples: [], open: true };
  const root = makeRoot(element);
  const notes = makeNotes(payload.notes, (lines, rows) => noted(lines, rows));

  const filter = () => {
    const [family, difficulty, alarm] = [byFamily, byDifficulty, byAlarm].map((choice) => Number(choice.value));
    const words = search.value.trim().toLowerCase();
    const before = state.chosen[state.at];
    state.chosen = tasks.filter(
      (task) =>
        outcome[byOutcome.value][1](task) &&
        (!family || task.family === families[family - 1]) &&
        (!difficulty || task.difficulty === difficulties[difficulty - 1]) &&
        (!alarm || (alarm > alarms.length ? notes.has(task.id) : task.alarms.includes(alarms[alarm - 1]))) &&
        contains(task, words),
    );
    go(Math.max(state.chosen.indexOf(before), 0), before === undefined);
  };
  const byOutcome = select("outcome", outcome.map(([text]) => text), filter);
  const byFamily = select("category", ["all categories", ...families.map((family) => `category ${family}`)], filter);
  const byDifficulty = select("difficulty", ["all difficulties", ...difficulties], filter);
  const byAlarm = select("alarms and notes", ["with and without alarms", ...alarms.map((a) => `alarm: ${a}`), "with a note"], filter);
  const search = label(node("input"), "search the texts");
  Object.assign(search, { type: "search", placeholder: "search the texts (/)" });
  let typed = 0;
  search.oninput = () => {
    clearTimeout(typed);
    typed = setTimeout(filter, 120);
  };
  const counter = node("output");
  const body = node("div");

  const go = (at, quiet = false) => {
    state.at = Math.min(Math.max(at, 0), Math.max(state.chosen.length - 1, 0));
    const task = state.chosen[state.at];
    state.samples = task ? task.columns.map(typical) : [];
    if (task) notes.open(task.id);
    state.draw();
    root.scrollTop = 0;
    if (task && !quiet) moved(task.id);
  };
  const previous = button("←", "previous task (arrow left)", () => go(state.at - 1));
  const next = button("→", "next task (arrow right)", () => go(state.at + 1));
  const folding = button("fold results", "fold or open all tool results (f)", () => {
    state.open = !state.open;
    folding.textContent = state.open ? "fold results" : "open results";
    state.draw();
  });
  const exporting = button("export notes", "save the notes as a file; append it to notes.jsonl in the run", () => {
    notes.save();
    download("notes.jsonl", notes.lines());
  });
  const noteRow = node("div", "note", "", notes.box, notes.status);
  state.draw = () => {
    const task = state.chosen[state.at];
    counter.textContent = task ? `task ${state.at + 1} of ${state.chosen.length}` : "no task";
    previous.disabled = state.at === 0;
    next.disabled = state.at >= state.chosen.length - 1;
    noteRow.hidden = !task;
    const focused = body.contains(document.activeElement);
    const shown = task ? drawTask(state, policies, task) : [node("div", "none", "No task fits these filters.")];
    body.replaceChildren(...shown);
    body.firstChild.after(noteRow);
    if (focused) root.focus({ preventScroll: true }); // the focused button is gone; the keys must go on working
  };
  listenForKeys(root, {
    ArrowLeft: () => go(state.at - 1),
    ArrowRight: () => go(state.at + 1),
    f: () => folding.click(),
    n: () => notes.box.focus(),
    "/": () => search.focus(),
  });
  root.append(
    node("div", "bar", "", previous, next, counter, byOutcome, byFamily, byDifficulty, byAlarm, search, folding, exporting),
    body,
  );
  go(0, true);
  const [theme, stop] = followTheme(root);
  /** Turn to a task; where the filters hide it they are taken off. */
  const open = (id) => {
    if (state.chosen[state.at]?.id === id || !tasks.some((task) => task.id === id)) return;
    if (!state.chosen.some((task) => task.id === id)) {
      for (const choice of [byOutcome, byFamily, byDifficulty, byAlarm]) choice.value = "0";
      search.value = "";
      state.chosen = tasks;
    }
    go(state.chosen.findIndex((task) => task.id === id));
  };
  const hear = (message) => {
    if (message.address) open(addressedTask(message.address));
    if (message.stored) notes.merge(readNotes(message.stored));
    if (message.kept === true) notes.say("saved in this browser");
    if (message.kept === false) notes.say("not saved: this browser keeps nothing for this page, so export the notes", true);
  };
  return { root, open, theme, stop, hear, say: notes.say, flush: notes.save };
}

async function render({ model, el }) {
  const payload = await unpack(model.get("data"));
  const view = show(el, { ...payload, notes: model.get("notes") }, {
    moved: (id) => {
      model.set("task_id", id);
      model.save_changes();
    },
    noted: (_, rows) => {
      view.say("saving …");
      model.set("notes", rows);
      model.save_changes();
    },
  });
  const follow = () => view.open(model.get("task_id"));
  const report = () => view.say(model.get("status"), model.get("status").startsWith("not saved"));
  follow();
  model.on("change:task_id", follow);
  model.on("change:status", report);
  return () => {
    view.flush();
    model.off("change:task_id", follow);
    model.off("change:status", report);
    view.stop();
  };
}

export default { render };
