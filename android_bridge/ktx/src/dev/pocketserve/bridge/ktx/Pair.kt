package dev.pocketserve.bridge.ktx

import dev.pocketserve.bridge.Pairing
import dev.pocketserve.bridge.PocketServe
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runInterruptible

/**
 * Exchanges the code that `pocketserve pair` shows for the server's token, see [Pairing.pair].
 *
 * @param code ten digits as the user typed them
 */
public suspend fun PocketServe.Builder.pair(code: String): String =
    runInterruptible(Dispatchers.IO) { Pairing.pair(this, code) }
