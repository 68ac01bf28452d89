package com.example.app

import dev.pocketserve.bridge.PocketServe
import dev.pocketserve.bridge.Transport
import java.io.File
import org.json.JSONArray

fun print(name: String, vararg values: Any) = println(name + "\t" + JSONArray(values.toList()))

fun ramp(size: Int) = FloatArray(size) { it % 64 / 64f }

/** Asks public models what it was given, and prints lines `name<TAB>JSON`. */
object PublicKotlin {
    @JvmStatic
    fun main(given: Array<String>) {
        PocketServe.builder().transport(Transport.valueOf(given[1])).socketPort(given[2].toInt())
            .httpPort(given[3].toInt()).tokenFile(File(given[4])).timeoutMs(120_000).build().use { server ->
                pictures(server, File(given[0], "photo").readBytes())
                for (one in NlClassifierRegexTokenizer(server).classify("a wonderful film").entries) {
                    print("nl_classifier_regex_tokenizer", one.label!!.text, one.index, one.score)
                }
                val sound = File(given[0], "sound.wav").readBytes()
                for (one in YamnetAudioClassifierWithMetadata(server).classify(sound).entries) {
                    print("yamnet_audio_classifier_with_metadata", one.label!!.text, one.index, one.score)
                }
                tensors(server)
            }
    }

    private fun pictures(server: PocketServe, photo: ByteArray) {
        for (one in MobilenetV1025224FloatMetadata(server).classify(photo).entries) {
            print("mobilenet_v1_0.25_224_float_metadata", one.label!!.text, one.index, one.score)
        }
        for (one in MobilenetV1025224Quant(server).classify(photo).entries) {
            print("mobilenet_v1_0.25_224_quant", one.label!!.text, one.index, one.score)
        }
        for (one in MobilenetV210224Quant(server).classify(photo).entries) {
            print("mobilenet_v2_1.0_224_quant", one.label!!.text, one.index, one.score)
        }
        for (one in CocoSsdMobilenetV110Quant(server).detect(photo).entries) {
            val box = one.box!!
            print(
                "coco_ssd_mobilenet_v1_1.0_quant",
                one.label!!.text, one.index, one.score, box.x, box.y, box.width, box.height
            )
        }
        for (one in Deeplabv3(server).segment(photo).entries) {
            print("deeplabv3", one.label!!.text, one.index, one.share, one.pixels)
        }
    }

    private fun tensors(server: PocketServe) {
        val notes = BasicPitchNmp(server).infer(ramp(43844)).statefulPartitionedCall0
        print("basic_pitch_nmp", JSONArray(notes.copyOf(500)))
        print("fer_emotion_dynrange", JSONArray(FerEmotionDynrange(server).infer(ramp(64 * 64)).identity))
        print("hello_world_float", JSONArray(HelloWorldFloat(server).infer(ramp(5)).statefulPartitionedCall0))
        val bytes = byteArrayOf(-100, 0, 100)
        print("hello_world_int8", JSONArray(HelloWorldInt8(server).infer(bytes).statefulPartitionedCall0))
    }
}
