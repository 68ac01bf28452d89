// The stream of a camera or a microphone: one at a time, and none for who stopped while the browser asked the user.

export class Capture {
  constructor() {
    this.stream = null;
    this.asked = 0;
  }

  stop() {
    this.asked += 1;
    end(this.stream);
    this.stream = null;
  }

  /** Ask for a stream; null when it was stopped, or asked for anew, before it came. */
  async open(wish) {
    this.stop();
    const { asked } = this;
    try {
      const stream = await navigator.mediaDevices.getUserMedia(wish);
      if (asked === this.asked) this.stream = stream;
      else end(stream);
    } catch (error) {
      if (asked === this.asked) throw error;
    }
    return asked === this.asked ? this.stream : null;
  }
}

function end(stream) {
  stream?.getTracks().forEach((track) => track.stop());
}
