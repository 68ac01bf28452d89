package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import org.junit.Test;

/** The live cases over the socket, and events that need a real server process. */
public class SocketLiveTest extends LiveCases {
    @Override
    Transport transport() {
        return Transport.SOCKET;
    }

    private static void signal(String name) throws Exception {
        Process kill = new ProcessBuilder("kill", "-" + name, System.getProperty("pocketserve.pid")).start();
        assertEquals(0, kill.waitFor());
    }

    /** Waits until no thread of the server runs, because signals take effect later. */
    private static void freeze() throws Exception {
        signal("STOP");
        File[] threads = new File("/proc/" + System.getProperty("pocketserve.pid") + "/task").listFiles();
        for (File thread : threads) {
            String state = "";
            while (!state.startsWith("T")) {
                Thread.yield();
                try {
                    String line = new String(Files.readAllBytes(new File(thread, "stat").toPath()), FakePeer.UTF_8);
                    state = line.substring(line.lastIndexOf(')') + 2);
                } catch (IOException ended) {
                    state = "T";
                }
            }
        }
    }

    /** Freezes the server as Android freezes apps. */
    @Test(timeout = LIMIT)
    public void aFrozenServerIsDetectedAndRecovers() throws Exception {
        try (PocketServe hasty = builder(transport()).tokenFile(new File(System.getProperty("pocketserve.token")))
                .pingIntervalMs(200).timeoutMs(3000).build()) {
            assertEquals("4", hasty.classify("digits", digit(4)).getBest().getLabel());
            try {
                freeze();
                PocketServeException error = ExpectedFailure.of(() -> hasty.classify("digits", digit(4)));
                assertTrue(error.toString(), error.isRetryable());
                assertTrue(error.toString(), error.getMessage().contains("frozen"));
            } finally {
                signal("CONT");
            }
            assertEquals("4", hasty.classify("digits", digit(4)).getBest().getLabel());
        }
    }
}
