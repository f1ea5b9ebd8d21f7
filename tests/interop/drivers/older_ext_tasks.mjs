// The TypeScript client with ext-tasks on the older wire, which it calls v1: `node older_ext_tasks.mjs PLAN`.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";
import {
  CreateTaskResultV1Schema,
  GetTaskResultV1Schema,
  ListTasksResultV1Schema,
  TaskStatusNotificationV1Schema,
} from "@modelcontextprotocol/ext-tasks/core/v1";
import { PARKED, answerTo, plan, refusal, related, shown, until, version, visit } from "./older_common.mjs";

const REQUIRED = { task: { preference: "require", retentionMs: 60_000 } };
const asked = new Map(); // by task: the questions that came about it
let silent = false;

// What a server sends about tasks is also held against the package's own schemas.
const wire = { checked: 0, problems: [] };

function check(schema, value) {
  const parsed = schema.safeParse(value);
  wire.checked += 1;
  if (!parsed.success) wire.problems.push({ value, issues: parsed.error.issues });
}

function watch(transport) {
  const sent = new Map();
  const send = transport.send.bind(transport);
  transport.send = (message, options) => {
    if (message.id !== undefined && message.method !== undefined) sent.set(message.id, message.method);
    return send(message, options);
  };
  const deliver = transport.onmessage;
  transport.onmessage = (message, extra) => {
    if (message.method === "notifications/tasks/status") check(TaskStatusNotificationV1Schema, message);
    const schema = { "tasks/get": GetTaskResultV1Schema, "tasks/list": ListTasksResultV1Schema }[sent.get(message.id)];
    if (message.method === undefined && message.result !== undefined) {
      if (schema !== undefined) check(schema, message.result);
      if (message.result.task !== undefined) check(CreateTaskResultV1Schema, message.result);
    }
    return deliver(message, extra);
  };
}

async function connect(capabilities) {
  const client = new Client({ name: "interop", version: "1" }, { capabilities });
  const [command, ...args] = plan.command ?? [];
  const transport =
    plan.url === undefined
      ? new StdioClientTransport({ command, args, cwd: plan.cwd, stderr: "ignore" })
      : new StreamableHTTPClientTransport(new URL(plan.url));
  await client.connect(transport);
  watch(transport);
  const session = createTaskSessionFromClient(client, {
    endpointId: "interop",
    onInputRequest: (request, context) => {
      const about = related(request.params) ?? context?.taskId ?? null;
      asked.set(about, [...(asked.get(about) ?? []), request.params.message]);
      return silent ? new Promise(() => undefined) : answerTo(request);
    },
    onError: (error) => wire.problems.push({ background: String(error) }),
  });
  return { client, session };
}

const { client, session } = await connect({ elicitation: { form: {} } });
const look = (taskId) => () => session.task(taskId).snapshot();

async function settled(name, params) {
  const execution = await session.callTool(name, params, REQUIRED);
  const states = [];
  const onEvent = (event) => void (event.type === "task" && states.push(event.task));
  const { outcome } = await execution.settle({ onEvent });
  return {
    kind: execution.kind,
    statuses: states.map((task) => task.status),
    messages: states.flatMap((task) => task.statusMessage ?? []),
    asked: asked.get(execution.handle.taskId) ?? [],
    outcome: outcome.status,
    ...(outcome.status === "completed" ? shown(resultFromTaskOutcome(outcome)) : { failure: outcome.error?.message }),
  };
}

async function listed() {
  const found = [];
  let cursor;
  let pages = 0;
  do {
    const page = await session.listTasks(cursor);
    found.push(...page.tasks);
    cursor = page.nextCursor;
    pages += 1;
  } while (cursor !== undefined);
  return { ids: found.map((task) => task.taskId), pages };
}

const scenarios = {
  handshake: async () => ({ era: client.getProtocolEra(), tasks: client.getServerCapabilities().tasks ?? null }),
  plain: async () => {
    const execution = await session.callTool("greet", { name: "Ada" });
    const { outcome } = await execution.settle();
    return { kind: execution.kind, ...shown(resultFromTaskOutcome(outcome)) };
  },
  create: async () => {
    const execution = await session.callTool("slow_compute", { seconds: 5, label: "create" }, REQUIRED);
    return { kind: execution.kind, task: await look(execution.handle.taskId)() };
  },
  result: () => settled("slow_compute", { seconds: 3, label: "result" }),
  question: () => settled("confirm_delete", { filename: "a.txt" }),
  two_questions: () => settled("multi_input", {}),
  question_first: () => settled("test_tool_with_task", {}),
  question_declined: () => settled("confirm_delete", { filename: "keep.txt" }),
  cancel: async () => {
    const execution = await session.callTool("park", { seconds: PARKED }, REQUIRED);
    const { taskId } = execution.handle;
    const before = (await look(taskId)()).status;
    await execution.cancel();
    const { outcome } = await execution.settle();
    const again = await refusal(() => session.task(taskId).cancel());
    return { before, after: (await look(taskId)()).status, outcome: outcome.status, again };
  },
  list: async () => {
    const labels = Array.from({ length: 12 }, (_, number) => `list ${number}`);
    const made = await Promise.all(
      labels.map((label) => session.callTool("slow_compute", { seconds: 0, label }, REQUIRED)),
    );
    const { ids, pages } = await listed();
    const missing = made.filter((execution) => !ids.includes(execution.handle.taskId)).length;
    return { missing, pages, twice: ids.length - new Set(ids).size };
  },
  failed: () => settled("failing_job", {}),
  protocol_error: () => settled("protocol_error_job", {}),
  unknown: () => refusal(look("no-such-task")),
  undeclared: async () => {
    const stranger = await connect({});
    const execution = await stranger.session.callTool("confirm_delete", { filename: "x" }, REQUIRED);
    const { outcome } = await execution.settle();
    await stranger.client.close();
    return { status: outcome.status, statusMessage: outcome.error?.message ?? null };
  },
};

async function leave() {
  const running = await session.callTool("slow_compute", { seconds: 3, label: "left" }, REQUIRED);
  const ended = await session.callTool("slow_compute", { seconds: 0, label: "ended" }, REQUIRED);
  silent = true;
  const question = await session.callTool("confirm_delete", { filename: "left.txt" }, REQUIRED);
  await until(look(ended.handle.taskId), "completed");
  await until(look(question.handle.taskId), "input_required");
  return Object.fromEntries(
    Object.entries({ running, ended, question }).map(([name, one]) => [name, one.serializeReference()]),
  );
}

const resume = (left) => ({
  resume: async () => {
    const executions = await Promise.all(
      [left.running, left.ended, left.question].map((reference) => session.resumeTask(reference)),
    );
    const ids = executions.map((execution) => execution.handle.taskId);
    const before = (await look(ids[0])()).status;
    const [running, ended, question] = await Promise.all(
      executions.map(async (execution) => shown(resultFromTaskOutcome((await execution.settle()).outcome))),
    );
    const found = await listed();
    return {
      before,
      running,
      ended,
      question,
      asked: asked.get(ids[2]) ?? [],
      listed: ids.every((taskId) => found.ids.includes(taskId)),
    };
  },
  wire: async () => wire,
});

scenarios.wire = async () => wire;
await visit(`${version("client")}/${version("ext-tasks")}`, scenarios, leave, resume);
