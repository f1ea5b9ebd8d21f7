// The Inspector's page in a real browser, against our server on the older wire: `node older_page.mjs PLAN`.
//   {page}   where the Inspector serves its page, with our server in its list
//   {pid}    a file with our server's process id; at the end of the first visit it is killed
//   {left}   the task that the first visit left behind: this is the second
import { readFileSync } from "node:fs";
import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";
import { plan, version } from "./older_common.mjs";

const PATIENCE_MS = 15_000;
const TASK_ID = /ID: (\S+)/;

const browser = await playwright.launch({ executablePath: await chromium.executablePath(), args: chromium.args });
const page = await browser.newPage({ viewport: { width: 1600, height: 1000 } });
page.setDefaultTimeout(PATIENCE_MS);

const seen = (text) => page.getByText(text, { exact: true }).first();
const text = () => page.evaluate(() => document.body.innerText);

async function connect() {
  await page.goto(plan.page);
  // The switch itself lies under what is drawn of it.
  await page.getByRole("switch", { name: /^Connect or disconnect/ }).click({ force: true });
  await seen("Connected").waitFor();
  const connected = await text();
  await seen("Tools").click();
  return connected;
}

async function start(tool, fields) {
  // Another one first: a tool that is chosen already shows its last result, not its form.
  await page.getByRole("button", { name: "greet", exact: true }).click();
  await page.getByRole("button", { name: tool, exact: true }).click();
  for (const [label, value] of Object.entries(fields)) await page.getByLabel(label).first().fill(value);
  const asTask = page.getByLabel("Run as task");
  if ((await asTask.count()) > 0 && (await asTask.isEnabled()) && !(await asTask.isChecked())) {
    await page.getByText("Run as task").click({ force: true });
  }
  await page.getByRole("button", { name: "Execute Tool" }).click();
}

const active = () => page.getByText(/^Active \(\d+\)$/).waitFor();
const shownTask = async () => TASK_ID.exec(await text())?.[1] ?? null;

async function answer(choose) {
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  const asked = await dialog.innerText();
  await choose(dialog);
  await dialog.waitFor({ state: "hidden" });
  return asked;
}

const steps = {
  result: async () => {
    await start("slow_compute", { Seconds: "2", Label: "page" });
    await seen("page: done after 2 s").waitFor();
    await page.getByText("COMPLETED").first().waitFor();
    return { task: await shownTask(), text: "page: done after 2 s" };
  },
  question: async () => {
    await start("confirm_delete", { Filename: "a.txt" });
    const asked = await answer(async (dialog) => {
      await dialog.getByRole("checkbox").check({ force: true });
      await dialog.getByRole("button", { name: "Submit" }).click();
    });
    await seen("deleted a.txt").waitFor();
    return { asked, text: "deleted a.txt" };
  },
  question_declined: async () => {
    await start("confirm_delete", { Filename: "b.txt" });
    await answer((dialog) => dialog.getByRole("button", { name: "Decline" }).click());
    await seen("kept b.txt").waitFor();
    return { text: "kept b.txt" };
  },
  failed: async () => {
    await start("failing_job", {});
    await page.getByText("the job failed, as it always does").first().waitFor();
    return { text: await text() };
  },
  cancel: async () => {
    await start("park", { Seconds: "60" });
    await active();
    await page.getByRole("button", { name: "Cancel Task" }).first().click();
    await page.getByText("CANCELLED").first().waitFor();
    return { active: /Active \(\d+\)/.test(await text()) };
  },
  list: async () => {
    await seen("Protocol").click();
    const asked = (await text()).includes("TASKS/LIST");
    await seen("Tasks").click();
    return { asked, shown: Number(/Completed \((\d+)\)/.exec(await text())?.[1] ?? 0) };
  },
  left: async () => {
    await start("slow_compute", { Seconds: "3", Label: "left" });
    await active();
    return { task: await shownTask() };
  },
};

async function resume() {
  const { task } = plan.left;
  const found = (await text()).includes(task);
  if (!found) return { found };
  for (;;) {
    const now = await text();
    if (now.includes("COMPLETED")) return { found, status: "completed" };
    await page.waitForTimeout(500);
    await page.reload();
    await connect();
    await seen("Tasks").waitFor();
  }
}

async function run(step) {
  const late = page.waitForTimeout(2 * PATIENCE_MS).then(() => ({ error: { message: "it takes too long" } }));
  try {
    return await Promise.race([step(), late]);
  } catch (error) {
    return { error: { message: error.message, page: await text() } };
  }
}

const outcomes = { version: version("inspector"), connected: await connect() };
if (plan.left === undefined) {
  // One after the other: a page shows one thing at a time.
  for (const [name, step] of Object.entries(steps)) outcomes[name] = await run(step);
  process.kill(Number(readFileSync(plan.pid, "utf8")), "SIGKILL");
} else {
  await page.waitForTimeout(1000);
  outcomes.resume = await run(resume);
}
console.log(JSON.stringify(outcomes));
await browser.close();
process.exit(0);
