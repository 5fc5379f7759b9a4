// A page that speaks AG-UI.
import { HttpAgent } from "@ag-ui/client";
import { watched } from "./watched.mjs";

const TOOLS = [{ name: "pick_date", description: "Ask for a date.", parameters: { type: "object" } }];

export const open = ({ url, thread, token }) => {
  const headers = { Authorization: `Bearer ${token}` };
  const heard = watched();
  const opened = (threadId) => new HttpAgent({ url: `${url}/agui`, threadId, headers, fetch: heard.fetch });
  let agent = opened(thread), last = {};
  const run = async (given) => {
    last = {};
    const subscriber = {
      onRunFinishedEvent: ({ event }) => { last.outcome = event.outcome; },
      onRunErrorEvent: ({ event }) => { last.error = event.message; },
    };
    try { await agent.runAgent({ tools: TOOLS, ...given }, subscriber); } catch (problem) { last.error ??= String(problem); }
  };
  const add = (message) => agent.addMessage({ id: crypto.randomUUID(), ...message });
  const calls = () => agent.messages.flatMap((one) => one.toolCalls ?? []);
  const unanswered = () => calls().filter((call) => !agent.messages.some((one) => one.toolCallId === call.id));
  return {
    heard,
    text: () => { const one = agent.messages.at(-1); return one?.role === "assistant" ? one.content ?? "" : ""; },
    state: () => ({ ...last, messages: agent.messages, pending: agent.pendingInterrupts, pings: heard.pings }),
    steps: {
      say: (text, file) => {
        const source = file && { type: "data", value: file.data, mimeType: file.mediaType };
        add({ role: "user", content: file ? [{ type: "text", text }, { type: "image", source }] : text });
        return run();
      },
      answer: (output) => {
        for (const call of unanswered()) add({ role: "tool", toolCallId: call.id, content: output });
        return run();
      },
      approve: (approved) => run({
        resume: agent.pendingInterrupts.map((one) => ({ interruptId: one.id, status: "resolved", payload: { approved } })),
      }),
      resume: () => run(),
      regenerate: () => run(),
      reload: (id = thread) => { agent = opened(id); return run(); },
      leave: () => agent.abortRun(),
      interrupt: () => fetch(`${url}/chats/${heard.chat}/interrupt`, { method: "POST", headers }),
    },
  };
};
