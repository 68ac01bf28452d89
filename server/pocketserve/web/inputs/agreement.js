// The words of live captions: those that two results in a row agree on are fixed, and never change.
const plain = (word) => word.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");

export class Agreement {
  constructor() {
    this.done = []; // words whose sound is sent no more
    this.fixed = [];
    this.open = []; // words that may still change
    this.before = [];
  }

  /** Take the words of the sound as it is now. */
  take(words) {
    let agreed = 0;
    while (agreed < Math.min(words.length, this.before.length) && plain(words[agreed]) === plain(this.before[agreed])) agreed += 1;
    this.fixed.push(...words.slice(this.fixed.length, agreed));
    this.open = words.slice(this.fixed.length);
    this.before = words;
  }

  /** Fix what is there: its sound is over. */
  finish() {
    this.done.push(...this.fixed, ...this.open);
    Object.assign(this, { fixed: [], open: [], before: [] });
  }

  /** End the first words; returns the second up to which the sound is needed no more. */
  cut(segments) {
    let count = 0;
    let end = 0;
    for (const segment of segments.slice(0, -1)) {
      const words = wordsOf(segment.text).length;
      if (count + words > this.fixed.length) break;
      count += words;
      end = segment.end;
    }
    this.done.push(...this.fixed.splice(0, count));
    this.before = this.before.slice(count);
    return end;
  }
}

export const wordsOf = (text) => text.split(/\s+/).filter(Boolean);
