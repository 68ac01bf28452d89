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
 * An answer about a frame.
 *
 * @property frame the frame that was sent
 * @property answer the answer: a [Prediction], or the typed answer of a generated class
 */
public data class FrameAnswer<out A>(public val frame: Frame, public val answer: A)

/**
 * Asks a model about these frames, always the newest, one at a time. While a frame is under way, or its answer is being
 * collected, a newer frame takes the place of the one that waits. Frames are forgotten so without a word.
 *
 * Cancelling the collector cancels the request. An error ends the flow with [PocketServeException]; `retryWhen` goes on.
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
 * Asks about these frames by a generated class, as `answers(server, model)` does by a model's name:
 * `answers(server) { digits.classifyNv21(it.bytes, it.width, it.height, it.rotation) }`.
 *
 * @param ask a blocking call with this client; it runs on a thread of the client
 */
public fun <A> Flow<Frame>.answers(server: PocketServe, ask: (Frame) -> A): Flow<FrameAnswer<A>> {
    val calls = server.coroutines()
    return newest { frame -> calls.call { ask(frame) } }
}

/** A frame that the server dropped for a newer one of its stream has no answer, and that is no error. */
private fun <A> Flow<Frame>.newest(ask: suspend (Frame) -> A): Flow<FrameAnswer<A>> =
    conflate().mapNotNull { frame ->
        try {
            FrameAnswer(frame, ask(frame))
        } catch (error: PocketServeException) {
            if (error.code != "SUPERSEDED") throw error
            null
        }
    }
