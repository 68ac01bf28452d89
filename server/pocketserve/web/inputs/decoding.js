// Encoded sound -> samples of one channel.
export const RATE = 16_000; // samples a second that are sent; the server brings them to the model's rate

/** The samples of a recording or a file that the browser reads, as 32-bit floats. */
export async function samplesOf(blob) {
  return mixed(await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer()));
}

function mixed(decoded) {
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, index) => decoded.getChannelData(index));
  if (channels.length === 1) return channels[0];
  return channels[0].map((_, at) => channels.reduce((sum, channel) => sum + channel[at], 0) / channels.length);
}
