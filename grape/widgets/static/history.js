// The runs of this notebook so far, which the kernel tells when somebody opens them.

/** A fold with a row for each run; "" where no kernel can be asked. */
function runsSection(host) {
  if (!host.actions.includes("runs")) return "";
  const body = element("div", {});
  const fold = element("details", { class: "grape-runs" }, element("summary", {}, "runs so far"), body);
  fold.addEventListener("toggle", async () => {
    if (!fold.open) return;
    body.replaceChildren(element("p", { class: "grape-quiet", role: "status" }, "asked the kernel \u2026"));
    try {
      const answer = await host.request("runs", null);
      if (answer.error) throw new Error(answer.error);
      body.replaceChildren(runsTable(answer.runs), element("p", { class: "grape-quiet" }, COMPARE));
    } catch (error) {
      body.replaceChildren(element("p", { class: "grape-quiet", role: "status" }, String(error.message || error)));
    }
  });
  return fold;
}

const COMPARE = "%grape compare A B shows two of them side by side";

function runsTable(runs) {
  const head = ["run", "at", "cell", "took", "plain", "verdict"].map((word) => element("th", { scope: "col" }, word));
  const rows = runs.flatMap(({ number, at, cell, took, plain, verdict, changes }) => {
    const facts = [at, cell, took, plain].map((text) => element("td", {}, text));
    const first = element("tr", {}, element("th", { scope: "row" }, String(number)), ...facts, element("td", {}, verdict));
    const below = changes.map((change) => element("tr", {}, element("td", { colspan: 5 }), element("td", {}, change)));
    return [first, ...below];
  });
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}
