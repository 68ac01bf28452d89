package com.example.app

import dev.pocketserve.bridge.PocketServe
import dev.pocketserve.bridge.PocketServeException
import dev.pocketserve.bridge.Transport
import java.io.File

object Faults {
    @JvmStatic
    fun main(given: Array<String>) {
        val seven = File(given[0], "seven.png").readBytes()
        PocketServe.builder().transport(Transport.valueOf(given[1])).socketPort(given[2].toInt())
            .httpPort(given[3].toInt()).tokenFile(File(given[4])).retries(0).reconnectMs(0).build().use { server ->
                val digits = Digits(server)
                while (true) {
                    val word = readLine() ?: break
                    try {
                        if (word == "check") digits.check()
                        println(digits.classify(seven).best.text)
                    } catch (error: PocketServeException) {
                        println(error.code + ": " + error.message)
                    }
                    System.out.flush()
                }
            }
    }
}
