/** Return the error that a call fails with. */
import assert from "node:assert/strict";

export async function failure(call) {
  try {
    await call;
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: "the call did not fail" });
}
