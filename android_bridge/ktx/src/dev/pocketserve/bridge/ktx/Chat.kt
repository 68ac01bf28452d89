package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.Call
import dev.pocketserve.bridge.Callback
import dev.pocketserve.bridge.ChatAnswer
import dev.pocketserve.bridge.ChatListener
import dev.pocketserve.bridge.ChatMessage
import dev.pocketserve.bridge.ChatOptions
import dev.pocketserve.bridge.PocketServeException
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.callbackFlow

/** An event of a chat: a piece of text, or the whole answer at the end. */
public sealed class ChatEvent {
    /**
     * The model wrote some text.
     *
     * @property text never empty
     */
    public data class Piece(public val text: String) : ChatEvent()

    /**
     * The answer is complete.
     *
     * @property answer all of it
     */
    public data class End(public val answer: ChatAnswer) : ChatEvent()
}

/**
 * Sends a chat. The flow emits the answer while the model writes it, and ends with [ChatEvent.End].
 *
 * Nothing is sent before the flow is collected; each collection sends the chat again. Cancelling the collector stops
 * the model. An error ends the flow with [PocketServeException]. Pieces that are not collected yet are buffered.
 *
 * @param messages the chat so far
 * @param options options of the answer; null for the model's defaults
 */
public fun CoroutineCalls.chat(
    model: String,
    messages: List<ChatMessage>,
    options: ChatOptions? = null
): Flow<ChatEvent> = callbackFlow {
    val listener = ChatListener { piece -> trySend(ChatEvent.Piece(piece)) }
    val call: Call = calls.chat(model, messages, options, listener, object : Callback<ChatAnswer> {
        override fun onResult(result: ChatAnswer) {
            trySend(ChatEvent.End(result))
            close()
        }

        override fun onError(error: PocketServeException) {
            close(error)
        }
    })
    awaitClose { call.cancel() }
}.buffer(Channel.UNLIMITED)

/** Sends one message to a language model, as the other [chat] does. */
public fun CoroutineCalls.chat(model: String, text: String, options: ChatOptions? = null): Flow<ChatEvent> =
    chat(model, listOf(ChatMessage.user(text)), options)
