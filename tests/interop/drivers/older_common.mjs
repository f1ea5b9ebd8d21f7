// What the TypeScript drivers of the older era share. They are told what to do in one JSON argument:
//   {url} or {command: [...]}   the server, over Streamable HTTP or over stdio
//   {pid}                       a file with its process id; at the end of the first visit it is killed
//   {left}                      what the first visit left behind: this is the second
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const PARKED = 30; // seconds of the task that is cancelled: longer than any scenario may last
const SCENARIO_LIMIT_MS = 25_000;

export const plan = JSON.parse(process.argv[2]);
export function answerTo({ params }) {
  if (params.message.includes("keep.txt")) return { action: "decline" };
  return { action: "accept", content: "name" in params.requestedSchema.properties ? { name: "Ada" } : { confirm: true } };
}
export const related = (value) => value?._meta?.["io.modelcontextprotocol/related-task"]?.taskId ?? null;
export const shown = (result) => ({ text: result.content[0].text, isError: result.isError ?? false });

export async function until(look, ...statuses) {
  for (;;) {
    const task = await look();
    if (statuses.includes(task.status)) return task;
    await sleep(100);
  }
}

export async function refusal(attempt) {
  try {
    return { accepted: await attempt() };
  } catch (error) {
    const { code, message } = error.code === undefined ? (error.cause ?? error) : error;
    return { code: code ?? null, message };
  }
}

async function run(scenario) {
  const limit = AbortSignal.timeout(SCENARIO_LIMIT_MS);
  const late = new Promise((_, reject) => limit.addEventListener("abort", () => reject(limit.reason)));
  try {
    return await Promise.race([scenario(), late]);
  } catch (error) {
    const cause = error.cause === undefined ? null : String(error.cause);
    return { error: { type: error.name, message: error.message, code: error.code ?? null, cause } };
  }
}

export async function runAll(scenarios) {
  const named = Object.entries(scenarios);
  return Object.fromEntries(await Promise.all(named.map(async ([name, scenario]) => [name, await run(scenario)])));
}

export function version(name) {
  const file = new URL(`./node_modules/@modelcontextprotocol/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(file, "utf8")).version;
}

// One visit: all scenarios at the same time; the first visit leaves tasks behind, and a server that was killed.
export async function visit(versions, scenarios, leave, resume) {
  const outcomes = plan.left === undefined ? await runAll(scenarios) : await runAll(resume(plan.left));
  if (plan.left === undefined && plan.pid !== undefined) {
    outcomes.left = (await runAll({ left: leave })).left;
    process.kill(Number(readFileSync(plan.pid, "utf8")), "SIGKILL");
  }
  console.log(JSON.stringify({ version: versions, ...outcomes }));
  process.exit(0);
}
