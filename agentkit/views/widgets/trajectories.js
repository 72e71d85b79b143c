// Trajectories side by side: tasks to page through, filters, deep links, notes.

const OWN_STYLE = `
.ak .samples {display:flex; flex-wrap:wrap; align-items:baseline; gap:4px; margin:6px 0}
.ak .samples button {padding:0 7px; font-size:13px}
.ak .note {display:flex; flex-wrap:wrap; gap:4px 10px; align-items:start; padding:4px 12px; max-width:75em}
.ak .note textarea {flex:1 1 20em; min-height:2.1em; field-sizing:content; max-height:12em; resize:vertical}
.ak .note output {color:var(--soft); font-size:13px; align-self:center}
.ak .note output.wrong {color:var(--bad)}
.ak .marked {border:1px solid var(--edge); background:var(--mark); border-radius:10px; padding:0 8px; margin-left:6px}
`;

// ---- choosing tasks ----
/** Filters by what happened, as [text, test]. Every earlier policy is compared with every later one. */
function outcomes(policies) {
  const last = policies.length - 1;
  const every = (right) => (task) => task.solved.every((solved) => solved === right);
  const pairs = policies.flatMap((a, i) => policies.slice(i + 1).map((b, k) => [a, i, b, i + 1 + k]));
  const flip = ([a, i, b, j], to) => [
    `flipped to ${to ? "right" : "wrong"} (${a} ${to ? "✗" : "✓"}, ${b} ${to ? "✓" : "✗"})`,
    (task) => task.solved[i] === !to && task.solved[j] === to,
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

const texts = (value) =>
  typeof value === "string" ? [value] : value && typeof value === "object" ? Object.values(value).flatMap(texts) : [];

/** The tasks block by block: one in full by its index, and which of them hold some words. */
function makeShelf(size, block) {
  const blocks = new Map();
  const haystacks = [];
  const task = async (i) => {
    const k = Math.floor(i / size);
    if (!blocks.has(k)) blocks.set(k, block(k + 1));
    return (await blocks.get(k))[i % size];
  };
  const holds = async (i, words) => {
    const first = i - (i % size);
    if (haystacks[i] === undefined) {
      const members = await block(first / size + 1); // not kept: only its words are
      members.forEach((one, k) => {
        haystacks[first + k] = texts(one).join("\n").toLowerCase();
      });
    }
    return haystacks[i].includes(words);
  };
  return { task, holds };
}

/** The sample shown first: one that ended the way the task counts, so that a solved task opens on a success. */
function typical(task) {
  return task.columns.map(({ samples }, p) => Math.max(samples.findIndex((sample) => sample.right === task.solved[p]), 0));
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
    const unscored = column.count - column.scored;
    const rest = unscored ? `scored right, ${unscored} not scored` : "samples right";
    section.append(drawSamples(state, column, p, column.scored ? `${column.right} of ${column.scored} ${rest}` : "samples"));
  }
  const ended = node("span", trajectory.stop.startsWith("stopped") ? "wrong" : "", trajectory.stop);
  const facts = node("div", "facts", "", ended, ` · ${count(trajectory.tokens, "token")}`);
  section.append(drawAnswer(trajectory), drawComponents(trajectory, odd), facts);
  return section;
}

function drawSamples(state, column, p, said) {
  const row = node("div", "samples", "", node("small", "soft", said));
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
  const labels = node("div", "soft text", `${task.id} · family ${task.family} · ${task.difficulty}`);
  labels.append(...task.marks.map((mark) => node("span", "marked", mark)));
  const gold = node("div", "", "", node("span", "soft", "gold answer "), node("b", "text", task.answer));
  const head = node("div", "task", "", labels, node("div", "prompt text", task.prompt), gold);
  const samples = task.columns.map((column, p) => column.samples[state.samples[p]]);
  const odd = oddComponents(samples.filter(Boolean));
  const heads = task.columns.map((column, p) => drawHead(state, policies[p], column, p, odd));
  return [head, drawColumns(policies, heads, samples, state.open)];
}

// ---- notes ----
const newest = (a, b) => (!a || (b && b.at > a.at) ? b : a);

/** Notes by task id, and the box to write them in. `noted` hears each change as a JSON line, and all rows. */
function makeNotes(rows, noted) {
  const notes = new Map(rows.map((row) => [row.task_id, row]));
  const box = label(node("textarea"), "note on this task");
  box.placeholder = "note on this task (n)";
  box.rows = 1;
  box.maxLength = 20000;
  const status = node("output");
  let task = "";
  let timer = 0;
  const line = (row) => `${JSON.stringify(row)}\n`;
  const lines = () => [...notes.values()].map(line).join("");
  const save = () => {
    clearTimeout(timer);
    if (box.value === (notes.get(task)?.text ?? "")) return;
    const row = { task_id: task, text: box.value, at: new Date().toISOString() };
    notes.set(task, row);
    noted(line(row), [...notes.values()]);
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
  const text = (id) => notes.get(id)?.text ?? "";
  return { box, status, say, open, merge, text, lines, save };
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
/** Draw the view. `block(i)` gives part of the payload, `moved` hears the id of the task turned to, `noted` the notes,
 * `shown` that a link was followed to a task of this view. */
function show(element, payload, { block, moved, noted, shown }) {
  const { policies } = payload;
  const tasks = payload.tasks.map((task, index) => ({ ...task, index }));
  const shelf = makeShelf(payload.block, block);
  const outcome = outcomes(policies);
  const families = unique(tasks.map((task) => task.family));
  const difficulties = unique(tasks.map((task) => task.difficulty));
  const marks = unique(tasks.flatMap((task) => task.marks));
  const state = { at: 0, chosen: tasks, task: null, samples: [], open: true, asked: 0, filtered: 0 };
  const root = makeRoot(element);
  const notes = makeNotes(payload.notes, noted);

  const filter = async () => {
    const mine = ++state.filtered;
    const [family, difficulty, mark] = [byFamily, byDifficulty, byMark].map((choice) => Number(choice.value));
    const words = searchBox.value.trim().toLowerCase();
    const before = state.chosen[state.at];
    let chosen = tasks.filter(
      (task) =>
        outcome[byOutcome.value][1](task) &&
        (!family || task.family === families[family - 1]) &&
        (!difficulty || task.difficulty === difficulties[difficulty - 1]) &&
        (!mark || (mark > marks.length ? notes.text(task.id) : task.marks.includes(marks[mark - 1]))),
    );
    if (words) chosen = await search(chosen, words, () => mine === state.filtered);
    if (mine !== state.filtered) return;
    state.chosen = chosen;
    go(Math.max(chosen.indexOf(before), 0));
  };
  const search = async (among, words, isWanted) => {
    const matches = [];
    let reported = performance.now();
    for (const [i, task] of among.entries()) {
      if ((await shelf.holds(task.index, words)) || notes.text(task.id).toLowerCase().includes(words)) matches.push(task);
      if (!isWanted()) return matches;
      if (performance.now() - reported < 100) continue;
      reported = performance.now();
      counter.textContent = `searching, ${Math.round((100 * i) / among.length)} %`;
      await new Promise((resolve) => setTimeout(resolve)); // let the page breathe
    }
    return matches;
  };
  const byOutcome = select("outcome", outcome.map(([text]) => text), filter);
  const byFamily = select("family", ["all families", ...families.map((family) => `family ${family}`)], filter);
  const byDifficulty = select("difficulty", ["all difficulties", ...difficulties], filter);
  const byMark = select("marks and notes", ["marks: any", ...marks.map((a) => `mark: ${a}`), "with a note"], filter);
  const searchBox = label(node("input"), "search the texts");
  Object.assign(searchBox, { type: "search", placeholder: "search (/)" });
  let typed = 0;
  searchBox.oninput = () => {
    clearTimeout(typed);
    typed = setTimeout(filter, 120);
  };
  const counter = node("output");
  const body = node("div");

  const go = async (at, quiet = false) => {
    const mine = ++state.asked;
    state.at = Math.min(Math.max(at, 0), Math.max(state.chosen.length - 1, 0));
    const chosen = state.chosen[state.at];
    const task = chosen ? await shelf.task(chosen.index) : null;
    if (mine !== state.asked) return; // turned on meanwhile
    state.task = task;
    state.samples = task ? typical(task) : [];
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
    const { task } = state;
    counter.textContent = task ? `task ${state.at + 1} of ${state.chosen.length}` : "no task";
    previous.disabled = state.at === 0;
    next.disabled = state.at >= state.chosen.length - 1;
    noteRow.hidden = !task;
    const focused = body.contains(document.activeElement);
    const drawn = task ? drawTask(state, policies, task) : [node("div", "none", "No task fits these filters.")];
    body.replaceChildren(...drawn);
    body.firstChild.after(noteRow);
    if (focused) root.focus({ preventScroll: true }); // the focused button is gone; the keys must go on working
  };
  listenForKeys(root, {
    ArrowLeft: () => go(state.at - 1),
    ArrowRight: () => go(state.at + 1),
    f: () => folding.click(),
    n: () => notes.box.focus(),
    "/": () => searchBox.focus(),
  });
  const filters = [byOutcome, byFamily, byDifficulty, byMark, searchBox];
  for (const choice of filters) choice.hidden = tasks.length === 1;
  root.append(node("div", "bar", "", previous, next, counter, ...filters, folding, exporting), body);
  go(0, true);
  const [theme, stop] = followTheme(root);
  /** Turn to a task, if it is one of this view's; where the filters hide it they are taken off. */
  const open = (id) => {
    if (!tasks.some((task) => task.id === id)) return false;
    if (state.chosen[state.at]?.id === id) return true;
    if (!state.chosen.some((task) => task.id === id)) {
      for (const choice of [byOutcome, byFamily, byDifficulty, byMark]) choice.value = "0";
      searchBox.value = "";
      state.chosen = tasks;
    }
    go(state.chosen.findIndex((task) => task.id === id));
    return true;
  };
  const hear = (message) => {
    if (message.address) open(addressedTask(message.address));
    if (message.link && open(addressedTask(message.link))) shown();
    if (message.stored) notes.merge(readNotes(message.stored));
    if (message.kept === true) notes.say("saved in this browser");
    if (message.kept === false) notes.say("not saved: this browser keeps nothing for this page, so export the notes", true);
  };
  return { open, theme, stop, hear, say: notes.say, flush: notes.save };
}

async function render({ model, el }) {
  const block = (i) => unpack(model.get("data")[i]);
  const view = show(el, { ...(await block(0)), notes: model.get("notes") }, {
    block,
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
  const link = (event) => {
    const address = event.target.closest?.('a[href^="#task="]')?.getAttribute("href");
    if (!address || !view.open(addressedTask(address))) return;
    event.preventDefault();
    el.scrollIntoView();
  };
  document.addEventListener("click", link, true);
  const report = () => view.say(model.get("status"), model.get("status").startsWith("not saved"));
  follow();
  model.on("change:task_id", follow);
  model.on("change:status", report);
  return () => {
    document.removeEventListener("click", link, true);
    view.flush();
    model.off("change:task_id", follow);
    model.off("change:status", report);
    view.stop();
  };
}

export default { render };
