// The calls that wait for a person: all of them are answered together, each once.

import "./argument-form.js";
import { canonical } from "./exact-json.js";
import { chatPath, get, post } from "./service.js";
import { asText, asValue, made, pairs, tell } from "./shown.js";

class OpenCalls extends HTMLElement {
  /** Show open calls; keep the typed text as long as the calls are the same. */
  async show(calls) {
    const asked = calls.filter((call) => call.executor === "client" || call.approval === "asked");
    const key = asked.map((call) => call.call_id).join(" ");
    if (key === this.key) return;
    this.key = key;
    if (!asked.length) return this.replaceChildren();
    const schemas = await get(chatPath(this.chatId, "argument-schemas")).catch(() => ({}));
    if (key === this.key) this.draw(asked, schemas);
  }

  draw(asked, schemas) {
    this.answers = asked.map((call) => (call.approval === "asked" ? approval(call, schemas[call.name]) : answer(call)));
    const isAllowedByOperator = asked.some((call) => call.approval === "asked" && call.approver !== "owner");
    const mayAnswer = this.may.has("submit_tool_results") && !(this.isOwner && isAllowedByOperator);
    const words = asked.length === 1 ? "Submit answer" : `Submit ${asked.length} answers`;
    const form = made("form", { noValidate: true }, ...this.answers.map((one) => one.element),
      mayAnswer ? made("button", { className: "main", textContent: words }) : made("p", { className: "muted", textContent: "An operator answers these calls." }));
    form.inert = !mayAnswer;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit().catch((error) => tell(this, error));
    });
    this.replaceChildren(made("h3", { textContent: "Open calls" }), form);
  }

  async submit() {
    const wrong = this.answers.map((one) => one.check()).find((input) => input !== null);
    if (wrong) return wrong.focus();
    await post(chatPath(this.chatId, "tool-results"), { results: this.answers.map((one) => one.result()) });
  }
}

function card(call, words, ...children) {
  return made("fieldset", { className: "call", data: { call: call.call_id } }, made("legend", { textContent: words }), ...children);
}

function approval(call, schema) {
  const edited = made("argument-form");
  edited.show(schema, call.arguments);
  const name = `decision-${call.call_id}`;
  const told = made("p", { className: "problem", id: `${name}-problem` });
  const option = (words) => {
    const input = made("input", { type: "radio", name, value: words, "aria-describedby": told.id });
    return [input, made("label", { className: "check" }, input, words)];
  };
  const [approve, approveLabel] = option("Approve");
  const [deny, denyLabel] = option("Deny");
  const reason = made("input", { type: "text", id: `${name}-reason` });
  const why = made("div", { className: "field", hidden: true }, made("label", { for: reason.id, textContent: "Reason, for the model" }), reason);
  const decision = made("div", { className: "decision", role: "radiogroup", "aria-label": `May ${call.name} run?` }, approveLabel, denyLabel);
  decision.addEventListener("change", () => {
    why.hidden = !deny.checked;
    told.textContent = "";
  });
  return {
    element: card(call, `May ${call.name} run?`, edited, decision, why, told),
    check() {
      if (!approve.checked && !deny.checked) {
        told.textContent = "Approve or deny.";
        return approve;
      }
      return approve.checked && edited.isChanged ? edited.check() : null; // what was asked may run as it is
    },
    result() {
      if (deny.checked) return { call_id: call.call_id, output: { approved: false, ...reason.value && { reason: reason.value } } };
      const given = edited.value;
      const isEdited = canonical(given) !== canonical(call.arguments);
      return { call_id: call.call_id, output: { approved: true, ...isEdited && { arguments: given } } };
    },
  };
}

function answer(call) {
  const id = `answer-${call.call_id}`;
  const told = made("p", { className: "problem", id: `${id}-problem` });
  const input = made("textarea", { rows: 2, id, className: "grows", "aria-describedby": told.id });
  const failed = made("input", { type: "checkbox" });
  return {
    element: card(call, `Answer ${call.name}`,
      pairs(Object.entries(call.arguments).map(([name, value]) => [name, asText(value)])),
      made("div", { className: "field" }, made("label", { for: id, textContent: "Answer, as JSON or text" }), input, told),
      made("label", { className: "check" }, failed, "It failed")),
    check() {
      told.textContent = input.value.trim() ? "" : "Say what came of it.";
      input.setAttribute("aria-invalid", String(Boolean(told.textContent)));
      return told.textContent ? input : null;
    },
    result: () => ({ call_id: call.call_id, output: asValue(input.value), is_error: failed.checked }),
  };
}

customElements.define("open-calls", OpenCalls);
