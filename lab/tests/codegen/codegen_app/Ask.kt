package com.example.app

import dev.pocketserve.bridge.Box
import dev.pocketserve.bridge.PocketServe
import dev.pocketserve.bridge.PredictOptions
import dev.pocketserve.bridge.Transport
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.json.JSONArray

fun print(name: String, vararg values: Any) = println(name + "\t" + JSONArray(values.toList()))

fun box(box: Box?) = JSONArray(listOf(box!!.x, box.y, box.width, box.height))

fun bytes(vararg values: Int): ByteBuffer = ByteBuffer.wrap(ByteArray(values.size) { values[it].toByte() })

object Ask {
    @JvmStatic
    fun main(given: Array<String>) {
        fun file(name: String) = File(given[0], name).readBytes()
        PocketServe.builder().transport(Transport.valueOf(given[1])).socketPort(given[2].toInt())
            .httpPort(given[3].toInt()).tokenFile(File(given[4])).build().use { server ->
                pictures(server, ::file)
                tables(server)
                texts(server)
                sounds(server, ::file)
                wide(Wide(server))
            }
    }

    private fun pictures(server: PocketServe, file: (String) -> ByteArray) {
        val seven = file("seven.png")
        val digits = Digits(server)
        for (one in digits.classify(seven).entries) {
            val same = one.label == Digits.Label.of(one.index)
            print("digits", same, one.label!!.text, one.text, one.index, one.score)
        }
        print("digits best", digits.classify(seven, PredictOptions().topK(1)).best.label!!.name)
        val nv21 = file("frame.nv21")
        print("digits nv21", digits.classifyNv21(nv21, 16, 16, 90).best.score)
        val v = ByteBuffer.wrap(nv21, 256, 128).slice()
        val u = ByteBuffer.wrap(nv21, 257, 127).slice()
        val y = ByteBuffer.wrap(nv21, 0, 256)
        print("digits planes", digits.classifyPlanes(y, 16, u, v, 16, 2, 16, 16, 90).best.score)
        print("digits rgba", digits.classifyRgba(file("frame.rgba"), 16, 16).best.score)
        val out = digits.infer(FloatArray(128) { if (it < 64) 0f else 1f })
        print("digits infer", JSONArray(out.scores), JSONArray(out.result.get("scores").shape))
        try {
            digits.infer(FloatArray(65))
        } catch (error: IllegalArgumentException) {
            print("digits length", error.message!!)
        }
        for (one in Numbers(server).detect(file("page.jpg")).entries) {
            print("numbers", one.label!!.text, one.index, one.score, box(one.box))
        }
        for (one in Shapes(server).detect(file("drawing.png")).entries) {
            print("shapes", one.label!!.name, one.score, box(one.box))
        }
        for (one in Ground(server).segment(file("drawing.png")).entries) {
            print("ground", one.label!!.name, one.share, one.pixels)
        }
        for (one in Poses(server).estimate(file("person.png")).entries) {
            val point = one.keypoints[0]
            val name = point.label!!.name
            print("poses", one.score, box(one.box), one.keypoints.size, name, point.x, point.y, point.score)
        }
    }

    private fun tables(server: PocketServe) {
        val row = Petals.Row(5.1, 3.5, 1.4)
        val value = Petals(server).predict(row).best
        print("petals", value.value, value.name, value.unit, row.sepalLength)
        print("petals rows", Petals(server).predict(listOf(row, Petals.Row(6.0, 3.0, 5.0))).entries[1].value)
        val patient = Diabetes.Row(59.0, 2.0, 32.1, 101.0, 157.0, 93.2, 38.0, 4.0, 4.8598, 87.0)
        print("diabetes", Diabetes(server).predict(patient).best.value)
        val rows = listOf(
            Hostile.Row(7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0),
            Hostile.Row(0.0, Double.NaN, 0.0, 9.0, 0.0, 0.0, 0.0)
        )
        for (one in Hostile(server).classify(rows).entries) {
            print("hostile", one.label!!.text, one.text, one.score, one.row)
        }
        for (label in Hostile.Label.values()) {
            print("hostile label", label.name, label.text)
        }
        print("hostile outside", Hostile.Label.of(-1) == null && Hostile.Label.of(1000) == null)
    }

    private fun texts(server: PocketServe) {
        for (one in Mood(server).classify(listOf("a film", "\u03c3")).entries) {
            print("mood", one.label!!.name, one.score, one.input)
        }
        print("mood one", Mood(server).classify("a \"film\"").best.label!!.name)
        val context = "ben likes tea. anna lives in oslo. ben lives in rome."
        val span = Answers(server).answer("where does anna live?", context).best
        print("answers", span.answer, span.start, span.end, span.score)
        val phrases = Phrases(server)
        print("phrases", JSONArray(phrases.embed("turn on the light").best.embedding))
        val match = phrases.compare("switch the lamp on", listOf("play a song", "turn on the light")).best
        print("phrases match", match.index, match.score)
        for (one in Shelf(server).recommend(intArrayOf(1, 2)).entries) {
            print("shelf", one.label!!.text, one.index, one.score)
        }
    }

    private fun sounds(server: PocketServe, file: (String) -> ByteArray) {
        val raw = ByteBuffer.wrap(file("tone.raw")).order(ByteOrder.LITTLE_ENDIAN).asShortBuffer()
        val samples = ShortArray(raw.remaining()) { raw.get(it) }
        for (one in Tones(server).classify(samples, 16000, 1).entries) {
            print("tones", one.label!!.text, one.score, one.start.isNaN())
        }
        print("tones wav", Tones(server).classify(file("tone.wav")).best.score)
        val plain = Plain(server).infer(floatArrayOf(5.1f, 3.5f, 1.4f, 6f, 3f, 5f))
        print("plain", JSONArray(plain.statefulPartitionedCall10))
    }

    private fun wide(wide: Wide) {
        val out = wide.infer(
            floatArrayOf(1f, 2f, 3f, 4f, 5f, 6f), longArrayOf(3, 2), doubleArrayOf(0.5, -1.0),
            bytes(0, 0x3c, 0, 0xc0), byteArrayOf(-1, 127), shortArrayOf(-300, 300), intArrayOf(-70000, 70000),
            longArrayOf(-1L shl 40, 1L shl 40), byteArrayOf(-1, 1), bytes(0xff, 0xff, 1, 0),
            bytes(0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0), bytes(1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0),
            booleanArrayOf(true, false), arrayOf("\u03c3", "b")
        )
        print(
            "wide", JSONArray(out.outFLOAT), JSONArray(out.outDOUBLE), JSONArray(out.outFLOAT16),
            JSONArray(out.outINT8), JSONArray(out.outINT16), JSONArray(out.outINT32), JSONArray(out.outINT64),
            JSONArray(out.outUINT8), JSONArray(out.outUINT16), JSONArray(out.outUINT32), JSONArray(out.outUINT64),
            JSONArray(out.outBOOL), JSONArray(out.outSTRING)
        )
    }
}
