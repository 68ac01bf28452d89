package com.example.app;

import dev.pocketserve.bridge.*;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;

public class Ask {
    static void print(String name, Object... values) {
        System.out.println(name + "\t" + new JSONArray(Arrays.asList(values)));
    }

    static JSONArray of(Object array) throws Exception {
        return new JSONArray(array);
    }

    static JSONArray box(Box box) {
        return new JSONArray(Arrays.asList(box.getX(), box.getY(), box.getWidth(), box.getHeight()));
    }

    static byte[] file(String folder, String name) throws Exception {
        return Files.readAllBytes(new File(folder, name).toPath());
    }

    static short[] samples(String folder) throws Exception {
        ByteBuffer bytes = ByteBuffer.wrap(file(folder, "tone.raw")).order(ByteOrder.LITTLE_ENDIAN);
        short[] samples = new short[bytes.remaining() / 2];
        bytes.asShortBuffer().get(samples);
        return samples;
    }

    public static void main(String[] given) throws Exception {
        String folder = given[0];
        try (PocketServe server = PocketServe.builder().transport(Transport.valueOf(given[1]))
                .socketPort(Integer.parseInt(given[2])).httpPort(Integer.parseInt(given[3]))
                .tokenFile(new File(given[4])).build()) {
            byte[] seven = file(folder, "seven.png");
            Digits digits = new Digits(server);
            for (Digits.Classification one : digits.classify(seven).getEntries()) {
                print("digits", one.getLabel() == Digits.Label.of(one.getIndex()), one.getLabel().getText(),
                        one.getText(), one.getIndex(), one.getScore());
            }
            print("digits best", digits.classify(seven, new PredictOptions().topK(1)).getBest().getLabel().name());
            byte[] nv21 = file(folder, "frame.nv21");
            print("digits nv21", digits.classifyNv21(nv21, 16, 16, 90).getBest().getScore());
            ByteBuffer vu = ByteBuffer.wrap(nv21, 256, 128);
            ByteBuffer v = vu.slice();
            vu.position(257);
            print("digits planes", digits.classifyPlanes(ByteBuffer.wrap(nv21, 0, 256), 16, vu.slice(), v, 16, 2, 16,
                    16, 90).getBest().getScore());
            print("digits rgba", digits.classifyRgba(file(folder, "frame.rgba"), 16, 16).getBest().getScore());
            float[] image = new float[128];
            Arrays.fill(image, 64, 128, 1f);
            print("digits infer", of(digits.infer(image).getScores()),
                    of(digits.infer(image).getResult().get("scores").getShape()));
            try {
                digits.infer(new float[65]);
            } catch (IllegalArgumentException error) {
                print("digits length", error.getMessage());
            }
            for (Numbers.Detection one : new Numbers(server).detect(file(folder, "page.jpg")).getEntries()) {
                print("numbers", one.getLabel().getText(), one.getIndex(), one.getScore(), box(one.getBox()));
            }
            for (Shapes.Detection one : new Shapes(server).detect(file(folder, "drawing.png")).getEntries()) {
                print("shapes", one.getLabel().name(), one.getScore(), box(one.getBox()));
            }
            for (Ground.Segment one : new Ground(server).segment(file(folder, "drawing.png")).getEntries()) {
                print("ground", one.getLabel().name(), one.getShare(), one.getPixels());
            }
            for (Poses.Body one : new Poses(server).estimate(file(folder, "person.png")).getEntries()) {
                Poses.Keypoint point = one.getKeypoints().get(0);
                print("poses", one.getScore(), box(one.getBox()), one.getKeypoints().size(), point.getLabel().name(),
                        point.getX(), point.getY(), point.getScore());
            }
            Petals.Row row = new Petals.Row(5.1, 3.5, 1.4);
            Petals.Value value = new Petals(server).predict(row).getBest();
            print("petals", value.getValue(), value.getName(), value.getUnit(), row.getSepalLength());
            print("petals rows", new Petals(server).predict(Arrays.asList(row, new Petals.Row(6, 3, 5)))
                    .getEntries().get(1).getValue());
            print("diabetes", new Diabetes(server).predict(
                    new Diabetes.Row(59, 2, 32.1, 101, 157, 93.2, 38, 4, 4.8598, 87)).getBest().getValue());
            List<Hostile.Row> rows = Arrays.asList(new Hostile.Row(7, 6, 5, 4, 3, 2, 1),
                    new Hostile.Row(0, Double.NaN, 0, 9, 0, 0, 0));
            for (Hostile.Classification one : new Hostile(server).classify(rows).getEntries()) {
                print("hostile", one.getLabel().getText(), one.getText(), one.getScore(), one.getRow());
            }
            for (Hostile.Label label : Hostile.Label.values()) {
                print("hostile label", label.name(), label.getText());
            }
            print("hostile outside", Hostile.Label.of(-1) == null && Hostile.Label.of(1000) == null);
            for (Mood.Classification one : new Mood(server).classify(Arrays.asList("a film", "\u03c3")).getEntries()) {
                print("mood", one.getLabel().name(), one.getScore(), one.getInput());
            }
            print("mood one", new Mood(server).classify("a \"film\"").getBest().getLabel().name());
            String context = "ben likes tea. anna lives in oslo. ben lives in rome.";
            Answers.Span span = new Answers(server).answer("where does anna live?", context).getBest();
            print("answers", span.getAnswer(), span.getStart(), span.getEnd(), span.getScore());
            Phrases phrases = new Phrases(server);
            print("phrases", of(phrases.embed("turn on the light").getBest().getEmbedding()));
            List<String> texts = new ArrayList<>(Arrays.asList("play a song", "turn on the light"));
            Phrases.Match match = phrases.compare("switch the lamp on", texts).getBest();
            print("phrases match", match.getIndex(), match.getScore());
            for (Shelf.Recommendation one : new Shelf(server).recommend(new int[] {1, 2}).getEntries()) {
                print("shelf", one.getLabel().getText(), one.getIndex(), one.getScore());
            }
            for (Tones.Classification one : new Tones(server).classify(samples(folder), 16000, 1).getEntries()) {
                print("tones", one.getLabel().getText(), one.getScore(), Double.isNaN(one.getStart()));
            }
            print("tones wav", new Tones(server).classify(file(folder, "tone.wav")).getBest().getScore());
            print("plain", of(new Plain(server).infer(PLAIN).getStatefulPartitionedCall10()));
            wide(new Wide(server));
        }
    }

    static final float[] PLAIN = {5.1f, 3.5f, 1.4f, 6, 3, 5};

    static ByteBuffer bytes(int... values) {
        ByteBuffer bytes = ByteBuffer.allocate(values.length);
        for (int value : values) {
            bytes.put((byte) value);
        }
        bytes.flip();
        return bytes;
    }

    static void wide(Wide wide) throws Exception {
        Wide.Outputs out = wide.infer(new float[] {1, 2, 3, 4, 5, 6}, new long[] {3, 2}, new double[] {0.5, -1},
                bytes(0, 0x3c, 0, 0xc0), new byte[] {-1, 127}, new short[] {-300, 300}, new int[] {-70000, 70000},
                new long[] {-1L << 40, 1L << 40}, new byte[] {-1, 1}, bytes(0xff, 0xff, 1, 0),
                bytes(0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0),
                bytes(1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0), new boolean[] {true, false},
                new String[] {"\u03c3", "b"});
        print("wide", of(out.getOutFLOAT()), of(out.getOutDOUBLE()), of(out.getOutFLOAT16()), of(out.getOutINT8()),
                of(out.getOutINT16()), of(out.getOutINT32()), of(out.getOutINT64()), of(out.getOutUINT8()),
                of(out.getOutUINT16()), of(out.getOutUINT32()), of(out.getOutUINT64()), of(out.getOutBOOL()),
                of(out.getOutSTRING()));
    }
}
