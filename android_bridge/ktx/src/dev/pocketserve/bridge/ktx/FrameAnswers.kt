package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.PocketServe
import dev.pocketserve.bridge.PocketServeException
import dev.pocketserve.bridge.PredictOptions
import dev.pocketserve.bridge.Prediction
import java.util.UUID
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.conflate
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.mapNotNull

/**
 * A frame and its answer.
 *
 * @property frame the frame that was sent
 * @property answer the answer: a [Prediction], or the typed answer of a generated class
 */
public data class FrameAnswer<out A>(public val frame: Frame, public val answer: A)

/**
 * Sends the newest of these frames to a model, one at a time. While a frame is in progress, or its answer is being
 * collected, a newer frame silently replaces the waiting one.
 *
 * Cancelling the collector cancels the request. An error ends the flow with [PocketServeException]; use `retryWhen` to
 * continue.
 *
 * @param options options of the answer; null for the server's defaults
 */
public fun Flow<Frame>.answers(
    server: PocketServe,
    model: String,
    options: PredictOptions? = null
): Flow<FrameAnswer<Prediction>> = flow {
    val calls = server.coroutines()
    val own = if (options == null) PredictOptions() else PredictOptions(options)
    own.stream(UUID.randomUUID().toString())
    emitAll(newest { frame -> calls.predict(model, frame, own) })
}

/**
 * Sends these frames through a generated class, as `answers(server, model)` does with a model's name:
 * `answers(server) { digits.classifyNv21(it.bytes, it.width, it.height, it.rotation) }`.
 *
 * @param ask a blocking call with this client; runs on a thread of the client
 */
public fun <A> Flow<Frame>.answers(server: PocketServe, ask: (Frame) -> A): Flow<FrameAnswer<A>> {
    val calls = server.coroutines()
    return newest { frame -> calls.call { ask(frame) } }
}

/** A frame that the server dropped for a newer one has no answer; that is not an error. */
private fun <A> Flow<Frame>.newest(ask: suspend (Frame) -> A): Flow<FrameAnswer<A>> =
    conflate().mapNotNull { frame ->
        try {
            FrameAnswer(frame, ask(frame))
        } catch (error: PocketServeException) {
            if (error.code != "SUPERSEDED") throw error
            null
        }
    }
