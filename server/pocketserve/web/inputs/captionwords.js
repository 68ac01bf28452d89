// The words of live captions: those that the server calls final never change.
/** The words of one recording, whose sequence is started again after a failure. */
export class CaptionWords {
  constructor() {
    Object.assign(this, { text: "", open: "", entries: [], base: 0, end: 0, id: null, isRestarted: false });
  }

  /** Parameters of the next step. */
  step(isLast) {
    const isFirst = this.id === null;
    if (isFirst) this.id = `captions-${Math.random()}`;
    const query = { sequence_id: this.id };
    if (isFirst) query.sequence_start = true;
    if (isLast) query.sequence_end = true;
    return query;
  }

  /** Add a step's words; the answer then has all final ones, as the transcript of a file does. */
  take(answer) {
    const entries = answer.predictions.map((entry) => ({ ...entry, start: entry.start + this.base, end: entry.end + this.base }));
    // A new sequence begins without a space.
    const isApart = this.text === "" || answer.text === "" || /^\s/.test(answer.text);
    this.text += isApart || !this.isRestarted ? answer.text : ` ${answer.text}`;
    this.isRestarted &&= answer.text === "";
    this.open = answer.open;
    this.entries.push(...entries);
    if (answer.final) this.end = this.base + answer.duration;
    else if (entries.length) this.end = entries.at(-1).end;
    Object.assign(answer, { text: this.text, predictions: [...this.entries], duration: this.base + answer.duration });
  }

  /** Forget what is not final; returns the second from which the sound is to be sent again. */
  restart() {
    Object.assign(this, { id: null, open: "", base: this.end, isRestarted: true });
    return this.end;
  }
}
