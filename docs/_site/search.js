// Browsers start no worker for a page that was opened from a folder. The search's then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      const inside = frame.contentWindow, script = inside.document.createElement("script");
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const loaded = new Promise((ready) => script.addEventListener("load", ready));
      this.postMessage = (data) => loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
      script.src = url;
      inside.document.head.append(script);
    }
  };
}
