// The chats of this tab: what was said, and how it is told to models and saved in files.
import { t } from "../words.js";

const KEPT = 20; // chats; the oldest goes first

/**
 * A chat has turns, each with a `question` and `answers`, one a model. An answer is `{model, text, thought, state,
 * failure, end, tokens, firstMs, rate, progress}`; its state is "waiting", "writing", "done", "stopped" or "failed".
 */
export const chats = { list: [], current: null };

export function newChat() {
  const { current } = chats;
  if (current && current.turns.length === 0) return;
  chats.current = { turns: [], system: current?.system ?? "", parameters: { ...current?.parameters } };
  chats.list = [chats.current, ...chats.list].slice(0, KEPT);
}

export const newAnswer = (model) => (
  { model, text: "", thought: "", state: "waiting", failure: null, end: "", tokens: 0, firstMs: 0, rate: 0, progress: null });

/** What a model is told of a chat up to a turn: its own answers, not those of the other models. */
export function messagesFor(chat, model, turn) {
  const messages = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  for (const each of chat.turns.slice(0, chat.turns.indexOf(turn) + 1)) {
    messages.push({ role: "user", content: each.question });
    const own = each.answers.find((answer) => answer.model === model && answer.text);
    if (own && each !== turn) messages.push({ role: "assistant", content: own.text });
  }
  return joined(messages);
}

/** Questions that got no answer go with the next one: many templates take turns only. */
function joined(messages) {
  const result = [];
  for (const message of messages) {
    const last = result.at(-1);
    if (last?.role === message.role) last.content += `\n\n${message.content}`;
    else result.push({ ...message });
  }
  return result;
}

export const titleOf = (chat) => chat.turns[0]?.question.slice(0, 40) || t("chat.new");

export function asJson(chat) {
  const answers = (turn) => turn.answers.map(({ model, text, thought, state, tokens, rate }) => (
    { model, text, ...(thought ? { reasoning: thought } : {}), state, tokens, tokens_per_second: Number(rate.toFixed(2)) }));
  const turns = chat.turns.map((turn) => ({ question: turn.question, answers: answers(turn) }));
  return JSON.stringify({ system: chat.system, parameters: chat.parameters, turns }, null, 2);
}

export function asMarkdown(chat) {
  const parts = [`# ${titleOf(chat)}`];
  if (chat.system.trim()) parts.push(`> ${chat.system.trim().replaceAll("\n", "\n> ")}`);
  for (const { question, answers } of chat.turns) {
    parts.push(`## ${t("chat.you")}`, question);
    for (const { model, text } of answers) parts.push(`## ${model}`, text);
  }
  return `${parts.join("\n\n")}\n`;
}
