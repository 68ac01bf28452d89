package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.InferOptions
import dev.pocketserve.bridge.InferResult
import dev.pocketserve.bridge.PocketServeException
import dev.pocketserve.bridge.PredictOptions
import dev.pocketserve.bridge.Prediction
import dev.pocketserve.bridge.Tensor
import java.security.SecureRandom
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.withContext

/**
 * A sequence of steps for a stateful model, from [CoroutineCalls.sequence]. Send one step after another, and end the
 * sequence with [use] or [close]. A step that fails after the model has started ends the sequence: later steps are
 * rejected.
 */
public class CoroutineSequence internal constructor(
    private val calls: CoroutineCalls,
    private val model: String,
    private val version: String?
) {
    private val id = 1 + (RANDOM.nextLong() ushr 2)
    private var sent = false
    private var begun = false

    /**
     * Sends the tensors of the next step and returns the outputs.
     *
     * @param inputs one for each input; inputs for state may be omitted
     * @param options outputs and other options; null for the server's defaults
     */
    public suspend fun infer(vararg inputs: Tensor, options: InferOptions? = null): InferResult =
        step { start -> calls.infer(model, *inputs, options = own(options).sequence(id, start, false)) }

    /**
     * Sends the raw input of the next step.
     *
     * @param contentType its media type, such as `audio/wav`
     * @param options options of the answer; null for the server's defaults
     */
    public suspend fun predict(input: ByteArray, contentType: String, options: PredictOptions? = null): Prediction =
        step { start ->
            val own = if (options == null) PredictOptions() else PredictOptions(options)
            own.parameter("sequence_id", "$id").parameter("sequence_start", "$start")
            calls.predict(model, input, contentType, if (version == null) own else own.version(version))
        }

    /**
     * Ends the sequence, also in a cancelled coroutine. The server expires a sequence that is not ended.
     */
    public suspend fun close() {
        if (!sent) return
        sent = false
        begun = false
        withContext(NonCancellable) {
            try {
                calls.infer(model, options = own(null).sequence(id, false, true))
            } catch (gone: PocketServeException) {
                // The sequence has already ended, possibly with the server.
            }
        }
    }

    /** Runs [block] with this sequence, then ends it, even if [block] throws. */
    public suspend inline fun <R> use(block: (CoroutineSequence) -> R): R =
        try {
            block(this)
        } finally {
            close()
        }

    private inline fun <R> step(send: (Boolean) -> R): R {
        sent = true // a cancelled first step may have started nevertheless
        val answer = send(!begun)
        begun = true
        return answer
    }

    private fun own(options: InferOptions?): InferOptions {
        val own = if (options == null) InferOptions() else InferOptions(options)
        return if (version == null) own else own.version(version)
    }

    private companion object {
        val RANDOM = SecureRandom()
    }
}
