package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.AsyncCalls
import dev.pocketserve.bridge.BlockingCall
import dev.pocketserve.bridge.Call
import dev.pocketserve.bridge.Callback
import dev.pocketserve.bridge.InferOptions
import dev.pocketserve.bridge.InferResult
import dev.pocketserve.bridge.ModelState
import dev.pocketserve.bridge.PocketServe
import dev.pocketserve.bridge.PocketServeException
import dev.pocketserve.bridge.PredictOptions
import dev.pocketserve.bridge.Prediction
import dev.pocketserve.bridge.Tensor
import java.util.concurrent.Executor
import kotlin.coroutines.resume
import kotlin.coroutines.resumeWithException
import kotlinx.coroutines.suspendCancellableCoroutine
import org.json.JSONObject

private const val ANY_BYTES = "application/octet-stream"

/** The coroutine's dispatcher delivers the answer to its thread, so the client's executor isn't used. */
private object AtOnce : Executor {
    override fun execute(work: Runnable) = work.run()
}

/** Returns the calls of this client as suspend functions. The client stays open until [PocketServe.close]. */
public fun PocketServe.coroutines(): CoroutineCalls = CoroutineCalls(async().on(AtOnce))

/**
 * The calls of a client as suspend functions, for any thread. None of them blocks.
 *
 * Each throws [PocketServeException] if the call fails, and [IllegalArgumentException] for invalid arguments. A
 * cancelled coroutine stops waiting immediately; over the socket, the server drops the request if it has not started.
 * A client runs up to eight calls at a time; further ones wait.
 */
public class CoroutineCalls internal constructor(internal val calls: AsyncCalls) {
    /**
     * Sends an encoded picture, such as a JPEG.
     *
     * @param picture must not change before the answer
     * @param options options of the answer; null for the server's defaults
     */
    public suspend fun classify(model: String, picture: ByteArray, options: PredictOptions? = null): Prediction =
        await { calls.classify(model, picture, options, it) }

    /**
     * Sends raw input of any kind.
     *
     * @param input must not change before the answer
     * @param contentType its media type, such as `audio/wav`
     * @param options options of the answer; null for the server's defaults
     */
    public suspend fun predict(
        model: String,
        input: ByteArray,
        contentType: String = ANY_BYTES,
        options: PredictOptions? = null
    ): Prediction = await { calls.predict(model, input, contentType, options, it) }

    /**
     * Sends one frame.
     *
     * @param frame its bytes must not change before the answer
     * @param options options of the answer; null for the server's defaults
     */
    public suspend fun predict(model: String, frame: Frame, options: PredictOptions? = null): Prediction =
        predict(model, frame.bytes, ANY_BYTES, frame.describe(options))

    /**
     * Runs blocking calls, such as those of a generated class, on a thread of the client:
     * `call { digits.classify(jpeg) }`.
     *
     * @param work uses this client; it is cancelled with the coroutine, like the other calls
     */
    public suspend fun <T> call(work: () -> T): T =
        await<Result<T>> { calls.call(BlockingCall { runCatching(work) }, it) }.getOrThrow()

    /**
     * Sends tensors and returns tensors.
     *
     * @param inputs one for each of the model's inputs
     * @param options version, outputs and other options; null for the server's defaults
     */
    public suspend fun infer(model: String, vararg inputs: Tensor, options: InferOptions? = null): InferResult =
        await { calls.infer(model, options, it, *inputs) }

    /**
     * Opens a sequence of requests to a stateful model. Nothing is sent before its first step.
     *
     * @param version null for the default version
     */
    public fun sequence(model: String, version: String? = null): CoroutineSequence =
        CoroutineSequence(this, model, version)

    /** Returns whether the server is running; false if nothing answers. */
    public suspend fun isLive(): Boolean = await { calls.isLive(it) }

    /** Returns whether the server accepts requests; false if nothing answers. */
    public suspend fun isReady(): Boolean = await { calls.isReady(it) }

    /**
     * Returns whether a model accepts requests.
     *
     * @param version null for the default version
     */
    public suspend fun isModelReady(model: String, version: String? = null): Boolean =
        await { calls.isModelReady(model, version, it) }

    /** Returns the server's name, version and extensions. */
    public suspend fun serverMetadata(): JSONObject = await { calls.serverMetadata(it) }

    /**
     * Returns inputs, outputs and description of a model.
     *
     * @param version null for the default version
     */
    public suspend fun modelMetadata(model: String, version: String? = null): JSONObject =
        await { calls.modelMetadata(model, version, it) }

    /** Returns the names of all models. */
    public suspend fun models(): List<String> = await { calls.models(it) }

    /** Returns every version in the server's folder, including unavailable ones. */
    public suspend fun index(): List<ModelState> = await { calls.index(it) }

    /**
     * Loads a model, so that its first request doesn't have to wait.
     *
     * @param release whether to release the model from quarantine
     */
    public suspend fun load(model: String, release: Boolean = false) {
        await<Void?> { calls.load(model, release, it) }
    }

    /** Stops serving a model until it is loaded again. */
    public suspend fun unload(model: String) {
        await<Void?> { calls.unload(model, it) }
    }
}

private suspend fun <T> await(start: (Callback<T>) -> Call): T = suspendCancellableCoroutine { waiting ->
    val call = start(object : Callback<T> {
        override fun onResult(result: T) = waiting.resume(result)

        override fun onError(error: PocketServeException) = waiting.resumeWithException(error)
    })
    waiting.invokeOnCancellation { call.cancel() }
}
