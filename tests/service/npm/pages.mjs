// Pages that take steps. A line in is a step of one page, a line out is what the page has after it.
// A step with `until` is over once the answer holds that text; what it has begun goes on, and the next step waits for it.
import { createInterface } from "node:readline";
import * as agui from "./agui.mjs";
import * as aiSDK from "./ai_sdk.mjs";

// A browser does not end for a promise that failed and that nobody awaits either.
process.on("unhandledRejection", () => {});
const pages = new Map();
const soon = () => new Promise((go) => setTimeout(go, 5));

const take = async ({ page: name, dialect, step, given, until, ...place }) => {
  const [kind, version] = dialect.split("-");
  if (!pages.has(name)) pages.set(name, { ...await (kind === "agui" ? agui : aiSDK).open({ ...place, version }) });
  const page = pages.get(name);
  if (step === "leave" || step === "interrupt") await page.steps[step]();
  await page.under_way;
  if (page.steps[step] && step !== "leave" && step !== "interrupt") {
    let over = false;
    page.under_way = Promise.resolve(page.steps[step](...given)).finally(() => { over = true; });
    page.under_way.catch(() => {});
    if (until) while (!over && !page.text().includes(until)) await soon();
    else await page.under_way;
  }
  return page.state();
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  take(asked)
    .then((told) => console.log(JSON.stringify({ page: asked.page, told })))
    .catch((problem) => console.log(JSON.stringify({ page: asked.page, problem: problem.stack })));
}
