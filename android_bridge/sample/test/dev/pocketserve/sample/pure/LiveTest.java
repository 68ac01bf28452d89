package dev.pocketserve.sample.pure;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PredictOptions;
import dev.pocketserve.bridge.Prediction;
import java.io.File;
import org.junit.Test;

/** Uses a real server like the app: list, choose, send, draw. */
public class LiveTest {
    @Test(timeout = 120_000)
    public void listChooseAskDraw() throws Exception {
        int http = Integer.getInteger("pocketserve.http");
        int socket = Integer.getInteger("pocketserve.socket");
        PocketServe.Builder server = PocketServe.builder().httpPort(http).socketPort(socket);
        try (PocketServe client = server.token(System.getProperty("pocketserve.token")).build()) {
            ModelMenu menu = ModelMenu.of(client.index());
            assertTrue(menu.models().contains("numbers"));
            assertFalse("a table takes no picture", menu.models().contains("petals"));
            String version = menu.versions("numbers").get(0);
            byte[] picture = FileBytes.of(new File(System.getProperty("pocketserve.picture")));
            PredictOptions options = new PredictOptions().parameter("mask", "png").version(version);
            Prediction answer = client.classify("numbers", picture, options);
            assertEquals(version, answer.getVersion());
            Overlay overlay = Overlay.of(answer.getJson());
            assertEquals(answer.getLabels().size(), overlay.boxes().size());
            assertFalse(overlay.isEmpty());
        }
    }
}
