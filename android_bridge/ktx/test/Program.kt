import dev.pocketserve.bridge.PocketServe
import dev.pocketserve.bridge.PocketServeException
import dev.pocketserve.bridge.PredictOptions
import dev.pocketserve.bridge.Tensor
import dev.pocketserve.bridge.Transport
import dev.pocketserve.bridge.ktx.Frame
import dev.pocketserve.bridge.ktx.answers
import dev.pocketserve.bridge.ktx.coroutines
import dev.pocketserve.bridge.ktx.pair
import dev.pocketserve.bridge.ktx.toFrame
import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOf
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.retryWhen
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking

/** Waits until the test says a word. */
private fun hear(word: String) = check(readln() == word)

private suspend fun calls(server: PocketServe, picture: File) {
    val ask = server.coroutines()
    println("classify ${ask.classify("digits", picture.readBytes(), PredictOptions().topK(1)).best?.label}")
    println("predict ${ask.predict("digits", picture.readBytes()).best?.label}")
    println("infer ${ask.infer("digits", Tensor.of("image", FloatArray(64), 1, 8, 8, 1)).get("scores").size()}")
    println("live ${ask.isLive()} ready ${ask.isReady()} digits ${ask.isModelReady("digits")} ${ask.isModelReady("x")}")
    println("server ${ask.serverMetadata().getString("name")} model ${ask.modelMetadata("digits").getString("name")}")
    println("models ${"digits" in ask.models()} ${ask.index().any { it.name == "digits" && it.state == "READY" }}")
    ask.unload("digits")
    println("unloaded ${ask.isModelReady("digits")}")
    ask.load("digits")
    println("loaded ${ask.isModelReady("digits")}")
    ask.sequence("sum").use { steps ->
        val sums = (1..3).map { steps.infer(Tensor.of("x", floatArrayOf(it.toFloat(), 0f), 1, 2)).get("y").floats()[0] }
        println("sums $sums")
    }
}

private suspend fun faults(builder: PocketServe.Builder, server: PocketServe) {
    val ask = server.coroutines()
    println(code { ask.classify("nothing", ByteArray(1)) })
    println(code { ask.classify("digits", ByteArray(1)) })
    println(code { flowOf(Frame.encoded(ByteArray(1))).answers(server, "nothing").toList() })
    println(code { ask.call { server.classify("nothing", ByteArray(1)) } })
    println(try { ask.call { require(false) { "the work's own" } } } catch (error: IllegalArgumentException) { error.message })
    server.close()
    println(code { ask.models() })
    println(code { builder.token("x".repeat(43)).build().coroutines().models() })
    println(code { builder.httpPort(1).socketPort(1).reconnectMs(0).build().coroutines().models() })
    println(code { builder.pair("12345 67890") })
    println(try { ask.models().size } catch (error: PocketServeException) { error.message })
}

private suspend fun code(call: suspend () -> Any): String =
    try {
        "${call()}"
    } catch (error: PocketServeException) {
        error.code
    }

private suspend fun frames(server: PocketServe, file: String) {
    val proxy = Pictures.proxy(file, 90)
    val camera = proxy.use { image ->
        val (y, u, v) = image.planes
        Frame.yuv(y.buffer, y.rowStride, u.buffer, v.buffer, u.rowStride, u.pixelStride, image.width, image.height, 90)
    }
    val bitmaps = listOf("ARGB_8888", "HARDWARE").map { Pictures.bitmap(file, it).toFrame(90) }
    val all = listOf(Frame.encoded(File(file).readBytes()), camera, Pictures.image(file).toFrame(90)) + bitmaps
    for (frame in all) {
        val best = server.coroutines().predict("digits", frame, PredictOptions().topK(1)).best
        println("${frame.format} ${frame.rotation} ${best?.label}")
    }
    println(flowOf(camera).answers(server, "digits").first().answer.best?.label)
}

/** Ten frames: the others come when the first has left, and the flow ends when all were given. */
private fun tenFrames(picture: File): Flow<Frame> = flow {
    emit(Frame.encoded(picture.readBytes()))
    hear("more")
    repeat(9) { emit(Frame.encoded(picture.readBytes() + ByteArray(it + 1))) }
    println("given")
    hear("end")
}.flowOn(Dispatchers.IO)

private fun oneFrame(picture: File): Flow<Frame> = flow {
    emit(Frame.encoded(picture.readBytes()))
    awaitCancellation()
}

private suspend fun newestWins(server: PocketServe, picture: File) {
    begin()
    val size = picture.length().toInt()
    tenFrames(picture).answers(server, "digits").collect { (frame, answer) ->
        println("answer ${frame.bytes.size - size} ${answer.best?.label}")
    }
    println("over")
}

/** The model is held from now on, and not while a JVM starts. */
private fun begin() {
    println("ready")
    hear("begin")
}

private fun cancelled(work: suspend () -> Unit) = runBlocking {
    begin()
    val job = launch {
        try {
            work()
        } catch (error: CancellationException) {
            println("cancelled")
            throw error
        }
    }
    launch(Dispatchers.IO) {
        hear("cancel")
        job.cancel()
    }
    job.join()
    println("over")
    hear("end")  // a client that is closed at once need not tell the server any more
}

private suspend fun goesOn(server: PocketServe, picture: File) {
    var failures = 0
    val frames = flow { emit(Frame.encoded(if (failures == 0) ByteArray(1) else picture.readBytes())) }
    val answers = frames.answers(server, "digits").retryWhen { error, _ -> error is PocketServeException && failures++ < 1 }
    println("${answers.first().answer.best?.label} after $failures")
}

fun main(given: Array<String>) {
    val (what, transport, socketPort, httpPort, token) = given
    val picture = File(given[5])
    val builder = PocketServe.builder().transport(Transport.valueOf(transport)).tokenFile(File(token))
    val server = builder.socketPort(socketPort.toInt()).httpPort(httpPort.toInt()).build()
    when (what) {
        "cancel-call" -> cancelled { server.coroutines().classify("digits", picture.readBytes()) }
        "cancel-flow" -> cancelled { oneFrame(picture).answers(server, "digits").collect { println("answer") } }
        "cancel-work" -> cancelled { server.coroutines().call { server.classify("digits", picture.readBytes()) } }
        "cancel-work-flow" -> cancelled {
            oneFrame(picture).answers(server) { server.classify("digits", it.bytes) }.collect { println("answer") }
        }
        else -> runBlocking {
            when (what) {
                "calls" -> calls(server, picture)
                "faults" -> faults(builder, server)
                "frames" -> frames(server, picture.path)
                "newest" -> newestWins(server, picture)
                "retry" -> goesOn(server, picture)
                else -> error("there is no $what")
            }
        }
    }
    server.close()
}
