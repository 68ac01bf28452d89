package com.example.app;

import dev.pocketserve.bridge.Box;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.Transport;
import java.io.File;
import java.nio.file.Files;
import java.util.Arrays;
import org.json.JSONArray;

/** Asks public models what it was given, and prints lines {@code name<TAB>JSON}. */
public class Public {
    static void print(String name, Object... values) {
        System.out.println(name + "\t" + new JSONArray(Arrays.asList(values)));
    }

    static byte[] file(String folder, String name) throws Exception {
        return Files.readAllBytes(new File(folder, name).toPath());
    }

    static float[] ramp(int size) {
        float[] values = new float[size];
        for (int i = 0; i < size; i++) {
            values[i] = i % 64 / 64f;
        }
        return values;
    }

    public static void main(String[] given) throws Exception {
        try (PocketServe server = PocketServe.builder().transport(Transport.valueOf(given[1]))
                .socketPort(Integer.parseInt(given[2])).httpPort(Integer.parseInt(given[3]))
                .tokenFile(new File(given[4])).timeoutMs(120_000).build()) {
            pictures(server, file(given[0], "photo"));
            for (NlClassifierRegexTokenizer.Classification one : new NlClassifierRegexTokenizer(server)
                    .classify("a wonderful film").getEntries()) {
                print("nl_classifier_regex_tokenizer", one.getLabel().getText(), one.getIndex(), one.getScore());
            }
            for (YamnetAudioClassifierWithMetadata.Classification one : new YamnetAudioClassifierWithMetadata(server)
                    .classify(file(given[0], "sound.wav")).getEntries()) {
                print("yamnet_audio_classifier_with_metadata", one.getLabel().getText(), one.getIndex(),
                        one.getScore());
            }
            tensors(server);
        }
    }

    private static void pictures(PocketServe server, byte[] photo) throws Exception {
        for (MobilenetV1025224FloatMetadata.Classification one : new MobilenetV1025224FloatMetadata(server)
                .classify(photo).getEntries()) {
            print("mobilenet_v1_0.25_224_float_metadata", one.getLabel().getText(), one.getIndex(), one.getScore());
        }
        for (MobilenetV1025224Quant.Classification one : new MobilenetV1025224Quant(server)
                .classify(photo).getEntries()) {
            print("mobilenet_v1_0.25_224_quant", one.getLabel().getText(), one.getIndex(), one.getScore());
        }
        for (MobilenetV210224Quant.Classification one : new MobilenetV210224Quant(server)
                .classify(photo).getEntries()) {
            print("mobilenet_v2_1.0_224_quant", one.getLabel().getText(), one.getIndex(), one.getScore());
        }
        for (CocoSsdMobilenetV110Quant.Detection one : new CocoSsdMobilenetV110Quant(server)
                .detect(photo).getEntries()) {
            Box box = one.getBox();
            print("coco_ssd_mobilenet_v1_1.0_quant", one.getLabel().getText(), one.getIndex(), one.getScore(),
                    box.getX(), box.getY(), box.getWidth(), box.getHeight());
        }
        for (Deeplabv3.Segment one : new Deeplabv3(server).segment(photo).getEntries()) {
            print("deeplabv3", one.getLabel().getText(), one.getIndex(), one.getShare(), one.getPixels());
        }
    }

    private static void tensors(PocketServe server) throws Exception {
        print("basic_pitch_nmp", new JSONArray(Arrays.copyOf(
                new BasicPitchNmp(server).infer(ramp(43844)).getStatefulPartitionedCall0(), 500)));
        print("fer_emotion_dynrange", new JSONArray(new FerEmotionDynrange(server).infer(ramp(64 * 64)).getIdentity()));
        print("hello_world_float", new JSONArray(
                new HelloWorldFloat(server).infer(ramp(5)).getStatefulPartitionedCall0()));
        print("hello_world_int8", new JSONArray(
                new HelloWorldInt8(server).infer(new byte[] {-100, 0, 100}).getStatefulPartitionedCall0()));
    }
}
