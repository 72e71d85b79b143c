// Beside a view's frame, in the page that holds it. A sandboxed frame sees neither the page's theme nor its address nor
// any storage: this tells it of them and of links to tasks (#task=ID), and stores its notes. Nothing else that the frame
// says has an effect.
(() => {
  const frame = document.currentScript?.previousElementSibling;
  if (!frame) return;
  const isLab = Boolean(document.getElementById("jupyter-config-data")); // JupyterLab's address is its own
  const tell = (message) => frame.contentWindow?.postMessage({ agentkit: message }, "*");
  const tellTheme = () => {
    const light = document.body.dataset.jpThemeLight;
    if (light !== undefined) tell({ theme: light === "true" ? "light" : "dark" });
  };
  const tellAddress = () => !isLab && tell({ address: location.hash });
  const storage = (act) => {
    try {
      return act(localStorage);
    } catch {
      return null; // switched off or full
    }
  };
  let followed = null; // the click on a link to a task; of several frames that hold the task, the first to answer is scrolled to
  const follow = (event) => {
    if (!frame.isConnected) return document.removeEventListener("click", follow, true);
    const link = event.target.closest?.('a[href^="#task="]');
    if (!link) return undefined;
    event.preventDefault();
    followed = event;
    tell({ link: link.getAttribute("href") });
    return undefined;
  };
  const hear = ({ source, data }) => {
    if (!frame.isConnected) return window.removeEventListener("message", hear);
    if (source !== frame.contentWindow || !data?.agentkit) return undefined;
    const { ready, task, key, note, shown } = data.agentkit;
    const storageKey = `agentkit-notes:${key}`;
    if (ready) {
      tellTheme();
      tellAddress();
      if (key) tell({ stored: storage((s) => s.getItem(storageKey)) });
    }
    if (typeof task === "string" && !isLab) history.replaceState(null, "", `#task=${encodeURIComponent(task)}`);
    if (shown && followed && !followed.agentkitShown) {
      followed.agentkitShown = true;
      frame.scrollIntoView();
    }
    if (typeof note === "string" && key) {
      const keep = (s) => (s.setItem(storageKey, (s.getItem(storageKey) ?? "") + note), true); // another tab may have added some
      tell({ kept: storage(keep) === true });
    }
    return undefined;
  };
  window.addEventListener("message", hear);
  document.addEventListener("click", follow, true);
  window.addEventListener("hashchange", tellAddress);
  new MutationObserver(tellTheme).observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  tell({ hello: true }); // the frame may have been ready first
})();
