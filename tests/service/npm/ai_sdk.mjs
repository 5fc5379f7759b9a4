// A page of the AI SDK, without React: `useChat` is a thin layer over `AbstractChat`.
import { watched } from "./watched.mjs";

const client_tools = [{ name: "pick_date", description: "Ask for a date.", input_schema: { type: "object" } }];

class State {
  status = "ready"; error = undefined;
  constructor(messages) { this.messages = messages; }
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (index, message) => { this.messages = this.messages.with(index, structuredClone(message)); };
  snapshot = (value) => structuredClone(value);
}

export const open = async ({ url, thread, token, version }) => {
  const { AbstractChat, DefaultChatTransport, validateUIMessages } = await import(`ai-${version}`);
  class Chat extends AbstractChat {
    constructor({ messages = [], ...init }) { super({ ...init, state: new State(messages) }); }
  }
  const headers = { Authorization: `Bearer ${token}` };
  const heard = watched();
  const api = `${url}/ai-sdk/chat?version=${version}`;
  const resumed = ({ id }) => ({ api: `${url}/ai-sdk/chat/${id}/stream?version=${version}&finished=true` });
  const transport = new DefaultChatTransport({
    api, headers, body: { client_tools }, fetch: heard.fetch, prepareReconnectToStreamRequest: resumed,
  });
  let chat = new Chat({ id: thread, transport });
  const parts = (state) => chat.messages.at(-1).parts.filter((one) => one.state === state);
  return {
    heard,
    text: () => {
      const one = chat.messages.at(-1);
      return one?.role === "assistant" ? one.parts.map((part) => part.text ?? "").join("") : "";
    },
    state: () => ({ status: chat.status, error: chat.error?.message, messages: chat.messages, pings: heard.pings }),
    steps: {
      say: (text, file) => {
        const url = file && `data:${file.mediaType};base64,${file.data}`;
        const files = file && [{ type: "file", mediaType: file.mediaType, url }];
        return chat.sendMessage(files ? { text, files } : { text });
      },
      answer: async (output) => {
        for (const part of parts("input-available")) {
          await chat.addToolOutput({ tool: "pick_date", toolCallId: part.toolCallId, output });
        }
        await chat.sendMessage();
      },
      approve: async (approved) => {
        for (const part of parts("approval-requested")) {
          await chat.addToolApprovalResponse({ id: part.approval.id, approved });
        }
        await chat.sendMessage();
      },
      resume: () => chat.resumeStream(),
      regenerate: (messageId) => chat.regenerate({ messageId }),
      reload: async (id = thread) => {
        const kept = await heard.fetch(`${url}/ai-sdk/chat/${encodeURIComponent(id)}/messages`, { headers });
        chat = new Chat({ id, transport, messages: await validateUIMessages({ messages: await kept.json() }) });
      },
      leave: () => chat.stop(),
      interrupt: () => fetch(`${url}/chats/${heard.chat}/interrupt`, { method: "POST", headers }),
    },
  };
};
