package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.PocketServe
import dev.pocketserve.bridge.PocketServeException
import dev.pocketserve.bridge.PredictOptions
import dev.pocketserve.bridge.Prediction
import java.util.UUID
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.conflate
import kotlinx.coroutines.flow.flow

/**
 * An answer about a frame.
 *
 * @property frame what was asked about
 * @property prediction what was answered
 */
public data class FrameAnswer(public val frame: Frame, public val prediction: Prediction)

/**
 * Asks a model about these frames, always the newest, one at a time. While a frame is under way, or its answer is being
 * collected, a newer frame takes the place of the one that waits. Frames are forgotten so without a word.
 *
 * Cancelling the collector cancels the request. An error ends the flow with [PocketServeException]; `retryWhen` goes on.
 *
 * @param options how to answer; null for the server's own ways
 */
public fun Flow<Frame>.answers(server: PocketServe, model: String, options: PredictOptions? = null): Flow<FrameAnswer> =
    flow {
        val calls = server.coroutines()
        val own = if (options == null) PredictOptions() else PredictOptions(options)
        own.stream(UUID.randomUUID().toString())
        conflate().collect { frame ->
            calls.predictUnlessSuperseded(model, frame, own)?.let { emit(FrameAnswer(frame, it)) }
        }
    }

/** Returns null when the server dropped the frame for a newer one of its stream, as that is no error. */
private suspend fun CoroutineCalls.predictUnlessSuperseded(
    model: String,
    frame: Frame,
    options: PredictOptions
): Prediction? =
    try {
        predict(model, frame, options)
    } catch (error: PocketServeException) {
        if (error.code != "SUPERSEDED") throw error
        null
    }
