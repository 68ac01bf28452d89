package dev.pocketserve.sample.pure;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import org.junit.Test;

/** Checks the screen's edges, announcements and camera permission. */
public class ScreenTest {
    private static String text(Edges edges) {
        return edges.left + " " + edges.top + " " + edges.right + " " + edges.bottom;
    }

    @Test
    public void theBarReachesBehindTheStatusBarAndTheRestStaysClear() {
        Edges system = new Edges(80, 60, 0, 120); // a cut-out at the left, the keyboard below
        Edges own = new Edges(4, 4, 4, 4);
        assertEquals("84 64 4 4", text(own.plus(system.ofBar())));
        assertEquals("84 4 4 124", text(own.plus(system.belowBar())));
    }

    @Test
    public void noMoreThanOneTextASecondIsSpoken() {
        SpeechGate gate = new SpeechGate(1000);
        assertTrue(gate.admits("cat", 5));
        assertFalse("the same again", gate.admits("cat", 2000));
        assertTrue(gate.admits("dog", 2000));
        assertFalse("too early", gate.admits("cat", 2999));
        assertTrue(gate.admits("cat", 3000));
    }

    @Test
    public void aMinuteOfFramesIsSixtyTextsAtMost() {
        SpeechGate gate = new SpeechGate(1000);
        int spoken = 0;
        for (int ms = 0; ms < 60_000; ms += 33) {
            spoken += gate.admits(ms % 2 == 0 ? "cat" : "dog", ms) ? 1 : 0;
        }
        assertTrue("" + spoken, spoken > 30 && spoken <= 60);
    }

    @Test
    public void restartedLiveModeAnnouncesItsFirstAnswer() {
        SpeechGate gate = new SpeechGate(1000);
        assertTrue(gate.admits("cat", 0));
        gate.reset();
        assertFalse("the interval stays", gate.admits("cat", 999));
        assertTrue(gate.admits("cat", 1000));
    }

    @Test
    public void theFinalDenialLeadsToTheSystemsSettings() {
        assertEquals(CameraAccess.ALLOWED, CameraAccess.after(true, false, false, true));
        assertEquals("the first no", CameraAccess.CAN_ASK, CameraAccess.after(false, false, true, false));
        assertEquals("the second", CameraAccess.ONLY_SETTINGS, CameraAccess.after(false, true, false, true));
        assertEquals("each later one", CameraAccess.ONLY_SETTINGS, CameraAccess.after(false, false, false, true));
        assertEquals("only dismissed", CameraAccess.CAN_ASK, CameraAccess.after(false, false, false, false));
    }
}
