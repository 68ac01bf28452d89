package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.Call
import dev.pocketserve.bridge.Callback
import dev.pocketserve.bridge.PocketServeException
import dev.pocketserve.bridge.SpeechSegment
import dev.pocketserve.bridge.TranscribeOptions
import dev.pocketserve.bridge.Transcript
import dev.pocketserve.bridge.TranscriptListener
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.callbackFlow

/** An event of a transcript: a segment, or the whole transcript at the end. */
public sealed class TranscriptEvent {
    /**
     * The model finished a segment.
     *
     * @property segment its text and times
     */
    public data class Segment(public val segment: SpeechSegment) : TranscriptEvent()

    /**
     * The transcript is complete.
     *
     * @property transcript all of it
     */
    public data class End(public val transcript: Transcript) : TranscriptEvent()
}

/**
 * Transcribes the speech in a sound. The flow emits each segment when it arrives, and ends with [TranscriptEvent.End].
 *
 * Nothing is sent before the flow is collected; each collection sends the sound again. Cancelling the collector stops
 * the model. An error ends the flow with [PocketServeException]. Segments that are not collected yet are buffered.
 *
 * @param sound the bytes of a recording; must not change while the flow is collected
 * @param options options of the transcript; null for the model's defaults
 */
public fun CoroutineCalls.transcribe(
    model: String,
    sound: ByteArray,
    options: TranscribeOptions? = null
): Flow<TranscriptEvent> = callbackFlow {
    val listener = TranscriptListener { segment -> trySend(TranscriptEvent.Segment(segment)) }
    val call: Call = calls.transcribe(model, sound, options, listener, object : Callback<Transcript> {
        override fun onResult(result: Transcript) {
            trySend(TranscriptEvent.End(result))
            close()
        }

        override fun onError(error: PocketServeException) {
            close(error)
        }
    })
    awaitClose { call.cancel() }
}.buffer(Channel.UNLIMITED)
