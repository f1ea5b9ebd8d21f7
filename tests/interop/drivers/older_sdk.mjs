// The client of the TypeScript SDK 1.x with its experimental tasks: `node older_sdk.mjs PLAN`.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CallToolResultSchema,
  ElicitRequestSchema,
  TaskStatusNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { PARKED, answerTo, plan, refusal, related, shown, until, version, visit } from "./older_common.mjs";

const TTL = 60_000;
const asked = new Map(); // by task: the questions that came about it
const heard = new Map(); // by task: the statuses that were pushed

async function connect(capabilities) {
  const client = new Client({ name: "interop", version: "1" }, { capabilities });
  if (capabilities.elicitation !== undefined) {
    client.setRequestHandler(ElicitRequestSchema, (request) => {
      const about = related(request.params);
      asked.set(about, [...(asked.get(about) ?? []), request.params.message]);
      return answerTo(request);
    });
  }
  client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => {
    heard.set(params.taskId, [...(heard.get(params.taskId) ?? []), params.status]);
  });
  const [command, ...args] = plan.command ?? [];
  const transport =
    plan.url === undefined
      ? new StdioClientTransport({ command, args, cwd: plan.cwd, stderr: "ignore" })
      : new StreamableHTTPClientTransport(new URL(plan.url));
  await client.connect(transport);
  await client.listTools(); // from which it knows which tools must be tasks
  return client;
}

const client = await connect({ elicitation: { form: {} } });
const tasks = client.experimental.tasks;

const stream = (name, args, options = {}) =>
  tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task: { ttl: TTL }, ...options });

async function create(name, args, options) {
  for await (const message of stream(name, args, options)) {
    if (message.type === "taskCreated") return message.task;
    if (message.type === "error") throw message.error;
  }
  throw new Error("no task was created");
}

async function followed(name, args, options) {
  const messages = [];
  for await (const message of stream(name, args, options)) messages.push(message);
  const { task } = messages[0];
  const last = messages.at(-1);
  return {
    types: messages.map((message) => message.type),
    statuses: messages.filter((message) => message.type === "taskStatus").map((message) => message.task.status),
    messages: messages.flatMap((message) => message.task?.statusMessage ?? []),
    asked: asked.get(task?.taskId) ?? [],
    heard: heard.get(task?.taskId) ?? [],
    ...(last.type === "result" ? { ...shown(last.result), related: related(last.result) === task.taskId } : {}),
    ...(last.type === "error" ? { failure: last.error.message } : {}),
  };
}

const look = (task) => () => tasks.getTask(task.taskId);
const resultOf = (task) => tasks.getTaskResult(task.taskId, CallToolResultSchema);

async function listed() {
  const found = [];
  let cursor;
  let pages = 0;
  do {
    const page = await tasks.listTasks(cursor);
    found.push(...page.tasks);
    cursor = page.nextCursor;
    pages += 1;
  } while (cursor !== undefined);
  return { ids: found.map((task) => task.taskId), pages };
}

const scenarios = {
  handshake: async () => {
    const { tools } = await client.listTools();
    return {
      tasks: client.getServerCapabilities().tasks ?? null,
      support: Object.fromEntries(tools.map((tool) => [tool.name, tool.execution?.taskSupport ?? null])),
    };
  },
  plain: async () => shown(await client.callTool({ name: "greet", arguments: { name: "Ada" } })),
  create: async () => ({ task: await create("slow_compute", { seconds: 5, label: "create" }) }),
  result: () => followed("slow_compute", { seconds: 3, label: "result" }),
  blocked: async () => {
    const task = await create("slow_compute", { seconds: 1, label: "blocked" });
    const result = await resultOf(task);
    return { ...shown(result), related: related(result) === task.taskId };
  },
  question: () => followed("confirm_delete", { filename: "a.txt" }),
  two_questions: () => followed("multi_input", {}),
  question_first: () => followed("test_tool_with_task", {}),
  question_declined: () => followed("confirm_delete", { filename: "keep.txt" }),
  question_pushed: async () => {
    // It asks for the result only at the end; the question has to find it without that.
    const task = await create("confirm_delete", { filename: "pushed.txt" });
    await until(look(task), "completed");
    return { asked: asked.get(task.taskId) ?? [], ...shown(await resultOf(task)) };
  },
  cancel: async () => {
    const task = await create("park", { seconds: PARKED });
    const before = (await tasks.getTask(task.taskId)).status;
    const answer = (await tasks.cancelTask(task.taskId)).status;
    const after = (await tasks.getTask(task.taskId)).status;
    return { before, answer, after, again: await refusal(() => tasks.cancelTask(task.taskId)) };
  },
  cancelled_result: async () => {
    const task = await create("park", { seconds: PARKED });
    const waiting = refusal(() => resultOf(task));
    await tasks.cancelTask(task.taskId);
    return waiting;
  },
  list: async () => {
    const labels = Array.from({ length: 12 }, (_, number) => `list ${number}`);
    const made = await Promise.all(labels.map((label) => create("slow_compute", { seconds: 0, label })));
    const { ids, pages } = await listed();
    return { missing: made.filter((task) => !ids.includes(task.taskId)).length, pages, twice: ids.length - new Set(ids).size };
  },
  failed: async () => {
    const task = await create("failing_job", {});
    const { status, statusMessage } = await until(look(task), "completed", "failed");
    return { status, statusMessage, ...shown(await resultOf(task)) };
  },
  protocol_error: async () => {
    const task = await create("protocol_error_job", {});
    const { status, statusMessage } = await until(look(task), "completed", "failed");
    return { status, statusMessage, ...(await refusal(() => resultOf(task))) };
  },
  unknown: () => refusal(() => tasks.getTask("no-such-task")),
  required_plainly: () =>
    // Past the client's own check, which refuses before it sends anything.
    refusal(() => client.request({ method: "tools/call", params: { name: "failing_job" } }, CallToolResultSchema)),
  forbidden_as_task: () => refusal(() => create("greet", { name: "Ada" })),
  undeclared: async () => {
    const stranger = await connect({});
    const task = (
      await stranger.experimental.tasks
        .callToolStream({ name: "confirm_delete", arguments: { filename: "x" } }, CallToolResultSchema, { task: {} })
        .next()
    ).value.task;
    const state = await until(() => stranger.experimental.tasks.getTask(task.taskId), "completed", "failed");
    await stranger.close();
    return state;
  },
};

async function leave() {
  const running = await create("slow_compute", { seconds: 3, label: "left" });
  const ended = await create("slow_compute", { seconds: 0, label: "ended" });
  // Asked by a client that never answers: it is killed first.
  client.setRequestHandler(ElicitRequestSchema, () => new Promise(() => undefined));
  const question = await create("confirm_delete", { filename: "left.txt" });
  await until(look(ended), "completed");
  await until(look(question), "input_required");
  return { running: running.taskId, ended: ended.taskId, question: question.taskId };
}

const resume = (left) => ({
  resume: async () => {
    const before = (await tasks.getTask(left.running)).status;
    const [running, ended, question] = await Promise.all(
      [left.running, left.ended, left.question].map(async (taskId) => shown(await resultOf({ taskId }))),
    );
    const { ids } = await listed();
    return {
      before,
      running,
      ended,
      question,
      asked: asked.get(left.question) ?? [],
      listed: Object.values(left).every((taskId) => ids.includes(taskId)),
    };
  },
});

await visit(version("sdk"), scenarios, leave, resume);
