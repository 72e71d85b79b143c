// Two buttons for a training: each sends its word; what the kernel says to it stands beside them.
const WORDS = { checkpoint: "Save a checkpoint", stop: "Stop after this step" };
const LOOK =
  "font: inherit; color: inherit; background: none; border: 1px solid; border-radius: 4px; " +
  "margin-right: .6em; padding: .3em .8em; cursor: pointer";
const SILENT =
  "no answer: from here a busy kernel cannot be reached. Interrupt it (■) to stop; that leaves a checkpoint too.";
const PATIENCE_MS = 10000;

function render({ model, el }) {
  const status = document.createElement("span");
  status.setAttribute("role", "status");
  let waiting;
  const buttons = Object.entries(WORDS).map(([word, label]) => {
    const button = document.createElement("button");
    button.textContent = label;
    button.style.cssText = LOOK;
    button.onclick = () => {
      model.send({ word });
      status.textContent = "asking …";
      clearTimeout(waiting);
      waiting = setTimeout(() => { status.textContent = SILENT; }, PATIENCE_MS);
    };
    return button;
  });
  const show = () => {
    clearTimeout(waiting);
    status.textContent = model.get("said");
    for (const button of buttons) {
      button.disabled = !model.get("is_on");
      button.style.opacity = button.disabled ? 0.5 : 1;
    }
  };
  model.on("change:said", show);
  model.on("change:is_on", show);
  el.style.color = "var(--jp-content-font-color0, inherit)";
  el.append(...buttons, status);
  show();
}

export default { render };
