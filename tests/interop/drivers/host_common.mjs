// What a host without tasks does with our server, for the TypeScript drivers. A driver gives two functions that call a
// tool: one of a client that can be asked, one of a client that cannot.
export const plan = JSON.parse(process.argv[2] ?? "{}");
export const NAME = { name: "interop", version: "1" };

const SCENARIO_LIMIT_MS = 20_000;
const LONG = 7; // seconds: longer than all waits of a call
const MIDDLING = 2.5; // longer than one wait, shorter than all that a client of 2026-07-28 comes back for

export const asked = []; // every question that reached the person

export function answerTo(request) {
  asked.push(request.params.message);
  return { action: "accept", content: { publish: true } };
}

export const shown = (result) => ({
  text: result.content[0].text,
  isError: result.isError ?? false,
  structured: result.structuredContent ?? null,
});

export async function visit(call, callUnasked) {
  const status = (first) => call("task_status", { task_id: first.structured.taskId });

  // A call, and what a model does that reads its answer. Where a person is to answer, it tells the person.
  async function followed(tool, args) {
    const first = await call(tool, args);
    let last = first;
    while (last.text.includes("still running") && last.structured.status === "working") last = await status(first);
    return { first, last };
  }

  const scenarios = {
    quick: () => call("render", { seconds: 0, label: "quick" }),
    middling: () => followed("render", { seconds: MIDDLING, label: "middling" }),
    long: async () => {
      const outcome = await followed("render", { seconds: LONG, label: "long" });
      return { ...outcome, again: await status(outcome.first) };
    },
    structured: () => followed("describe", { seconds: LONG, label: "structured" }),
    asks: async () => ({
      ...(await followed("publish", { label: "asks" })),
      asked: asked.filter((message) => message === "Publish asks?").length,
    }),
    unasked: () => callUnasked("publish", { label: "unasked" }),
    fails: () => call("fail", { seconds: 0, label: "fails" }),
    fails_late: () => followed("fail", { seconds: LONG, label: "fails_late" }),
    cancel: async () => {
      const first = await call("render", { seconds: 60, label: "cancel" });
      const cancelled = await call("task_cancel", { task_id: first.structured.taskId });
      return { first, cancelled, last: await status(first) };
    },
    unknown: () => call("task_status", { task_id: "no-such-task" }),
  };
  const outcomes = await Promise.all(Object.values(scenarios).map(run));
  return Object.fromEntries(Object.keys(scenarios).map((name, index) => [name, outcomes[index]]));
}

async function run(scenario) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("no end after 20 s")), SCENARIO_LIMIT_MS);
  });
  try {
    return await Promise.race([scenario(), limit]);
  } catch (error) {
    return { error: { type: error.constructor.name, message: String(error.message), code: error.code ?? null } };
  } finally {
    clearTimeout(timer);
  }
}

export function report(outcomes) {
  console.log(JSON.stringify([outcomes]));
  process.exit(0);
}
