// Reads Prometheus' text, and makes the series of the charts from samples of it.
const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const SHOWN = new Set([
  ...["requests_total", "request_seconds_bucket", "queue_length", "models_memory_bytes", "memory_budget_bytes", "low_power",
    "battery_charge_ratio", "usable_cores", "info", "model_device"].map((name) => `pocketserve_${name}`),
  "process_resident_memory_bytes",
]);
const WINDOW = 15; // samples over which quantiles are taken: half a minute

/** Text -> {name: [{labels, value}]}, of what the page shows: hundreds of samples are kept. */
export function parseMetrics(text) {
  const metrics = {};
  for (const [, name, labels, value] of text.split("\n").map((line) => LINE.exec(line) ?? [])) {
    if (SHOWN.has(name)) note(metrics[name] ??= [], readLabels(labels ?? ""), readValue(value));
  }
  return metrics;
}

/** Add an entry; those of a histogram are summed over everything but their limit. */
function note(entries, labels, value) {
  const same = entries.find((entry) => labels.le !== undefined && entry.labels.le === labels.le);
  if (same) same.value += value;
  else entries.push({ labels: labels.le === undefined ? labels : { le: labels.le }, value });
}

function readLabels(text) {
  const pairs = [...text.matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\(.)/g, "$1")]);
  return Object.fromEntries(pairs);
}

const readValue = (text) => (text === "+Inf" ? Infinity : Number(text));

/** The sum of a metric's values whose labels fit. */
export function total(values, name, labels = {}) {
  const entries = (values[name] ?? []).filter((entry) => fits(entry.labels, labels));
  return entries.reduce((sum, entry) => sum + entry.value, 0);
}

const fits = (labels, wanted) => Object.entries(wanted).every(([name, value]) => labels[name] === value);

/** Requests a second between neighbouring samples; null before the first pair and after a restart. */
export function rates(samples, labels) {
  return samples.map((sample, index) => {
    const before = samples[index - 1];
    if (!before) return null;
    const gained = total(sample.values, "pocketserve_requests_total", labels)
      - total(before.values, "pocketserve_requests_total", labels);
    return gained < 0 ? null : gained / (sample.time - before.time);
  });
}

/** A quantile of the latency in ms over the last half minute, at each sample. */
export function quantiles(samples, share) {
  return samples.map((sample, index) => {
    const before = samples[Math.max(0, index - WINDOW)];
    return quantile(differences(buckets(before), buckets(sample)), share);
  });
}

function buckets(sample) {
  const counts = new Map();
  for (const { labels, value } of sample.values.pocketserve_request_seconds_bucket ?? []) {
    const limit = readValue(labels.le);
    counts.set(limit, (counts.get(limit) ?? 0) + value);
  }
  return counts;
}

function differences(before, after) {
  return [...after].sort((a, b) => a[0] - b[0]).map(([limit, count]) => [limit, count - (before.get(limit) ?? 0)]);
}

function quantile(counts, share) {
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let low = 0;
  let below = 0;
  for (const [limit, count] of counts) {
    if (count >= share * all) return 1000 * within(low, limit, (share * all - below) / Math.max(1, count - below));
    [low, below] = [limit, count];
  }
  return null;
}

const within = (low, high, share) => (high === Infinity ? low : low + (high - low) * share);
