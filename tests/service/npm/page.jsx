// A page of the AI SDK's React hooks, as their guides write one. The address says where the service is.
import { useRef } from "react";
import { createRoot } from "react-dom/client";
import { Chat, useChat } from "hooks";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses as isAnswered,
  lastAssistantMessageIsCompleteWithToolCalls as isComplete,
} from "sdk";

const { url, token, thread, version } = Object.fromEntries(new URLSearchParams(location.search));
const headers = { Authorization: `Bearer ${token}` };
const client_tools = [{ name: "pick_date", description: "Ask for a date.", input_schema: { type: "object" } }];

let chat;
const noted = async (...given) => {
  const response = await fetch(...given);
  chat = response.headers.get("Turnwise-Chat") ?? chat;
  return response;
};
const transport = new DefaultChatTransport({
  api: `${url}/ai-sdk/chat?version=${version}`, headers, body: { client_tools }, fetch: noted,
  prepareReconnectToStreamRequest: ({ id }) => ({
    api: `${url}/ai-sdk/chat/${id}/stream?version=${version}&finished=true`, headers,
  }),
});

const Part = ({ part, approve }) => {
  if (part.type === "text") return <p className="text">{part.text}</p>;
  if (!part.type.startsWith("tool-") && part.type !== "dynamic-tool") return null;
  return (
    <p className="tool">
      {part.toolName ?? part.type.slice(5)} {part.state} {JSON.stringify(part.output ?? part.input)}
      {part.state === "approval-requested" && (
        <button onClick={() => approve({ id: part.approval.id, approved: true })}>Allow</button>
      )}
    </p>
  );
};

let answer;
const options = {
  id: thread, transport,
  sendAutomaticallyWhen: (given) => isComplete(given) || isAnswered(given),
  onToolCall: ({ toolCall }) => {
    if (toolCall.toolName !== "pick_date") return;
    answer({ tool: "pick_date", toolCallId: toolCall.toolCallId, output: "Friday" });
  },
};
const Page = ({ given }) => {
  const text = useRef();
  const { messages, status, error, sendMessage, addToolOutput, addToolApprovalResponse, resumeStream } = useChat(given);
  answer = addToolOutput;
  const send = (event) => { event.preventDefault(); sendMessage({ text: text.current.value }); };
  return (
    <main>
      <p id="status">{status}</p>
      <p id="error">{error?.message}</p>
      {messages.map((message) => (
        <section key={message.id} className={message.role}>
          {message.parts.map((part, place) => <Part key={place} part={part} approve={addToolApprovalResponse} />)}
        </section>
      ))}
      <form onSubmit={send}><input ref={text} aria-label="Message" /><button>Send</button></form>
      <button onClick={() => fetch(`${url}/chats/${chat}/interrupt`, { method: "POST", headers })}>Stop</button>
      <button onClick={() => resumeStream()}>Resume</button>
    </main>
  );
};

const open = async () => {
  const opened = await noted(`${url}/ai-sdk/chat/${thread}/messages`, { headers });
  options.messages = await opened.json();
  const resume = options.messages.length > 0;
  // Hooks of version 6 that are given a transport forget that it replays, and show what was lost beside what is kept.
  const given = version === "6" ? { chat: new Chat(options), resume } : { ...options, resume };
  createRoot(document.body.appendChild(document.createElement("div"))).render(<Page given={given} />);
};

open();
