/**
 * Sends requests to a Pocketserve server on the same device, from plain Java 8 or Kotlin.
 *
 * <p>Start with {@link dev.pocketserve.bridge.PocketServe}.
 */
package dev.pocketserve.bridge;
