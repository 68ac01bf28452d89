// Asks one version of a model about one sample.
import { askJson } from "./server.js";

/** The path of a request, with its query. */
export function predictPath(model, version, query) {
  const parts = ["predictions", model, version].filter(Boolean).map(encodeURIComponent);
  const search = new URLSearchParams(query).toString();
  return `/${parts.join("/")}${search ? `?${search}` : ""}`;
}

/** The answer, with `round_trip_ms` as this page measured it. */
export async function predict(model, version, bench, sample) {
  const began = performance.now();
  const answer = await askJson("POST", predictPath(model, version, bench.query(sample)), bodyOf(sample.body));
  return { ...answer, round_trip_ms: performance.now() - began };
}

/** Bytes go as a Blob: a typed array costs Chromium ten times as long. */
const bodyOf = (body) => (body instanceof Blob ? body : new Blob([body]));

/** The metadata of a version; the server loads it for that. */
export function askMetadata(model, version) {
  const tail = version ? `/versions/${encodeURIComponent(version)}` : "";
  return askJson("GET", `/v2/models/${encodeURIComponent(model)}${tail}`);
}
