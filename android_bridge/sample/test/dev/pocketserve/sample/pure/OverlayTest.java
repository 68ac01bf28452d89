package dev.pocketserve.sample.pure;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import org.json.JSONObject;
import org.junit.Test;

/** Checks the drawings of answers, including those of a broken or hostile server. */
public class OverlayTest {
    private static final Geometry TWICE = Geometry.fitted(100, 100, 200, 200);

    private static Overlay read(String predictions, String rest) throws Exception {
        return Overlay.of(new JSONObject("{\"predictions\": [" + predictions + "]" + rest + "}"));
    }

    @Test
    public void boxesHaveTheirNamesAndColours() throws Exception {
        Overlay overlay = read("{'label': 'cat', 'index': 3, 'score': 0.926,"
                + " 'box': {'x': 10, 'y': 20, 'width': 30, 'height': 40}}", "");
        Overlay.Area box = overlay.boxes().get(0);
        assertEquals("cat 93 %", box.name);
        assertEquals(3, box.index);
        assertArrayEquals(new float[] {20, 40, 80, 120}, TWICE.frame(box), 0);
        assertArrayEquals(new float[] {120, 40, 180, 120}, TWICE.mirrored().frame(box), 0);
    }

    @Test
    public void aBodyHasLinesBetweenItsVisiblePoints() throws Exception {
        StringBuilder points = new StringBuilder();
        for (int i = 0; i < 17; i++) {
            points.append(i == 0 ? "" : ",").append("{'x': ").append(i).append(", 'y': 50, 'score': ")
                    .append(i == 5 || i == 7 || i == 9 ? 0.9 : 0.1).append('}');
        }
        Overlay overlay = read("{'label': 'person', 'score': 0.5, 'box': {'x': 0, 'y': 0, 'width': 9, 'height': 9},"
                + " 'keypoints': [" + points + "]}", "");
        assertTrue("a body needs no box", overlay.boxes().isEmpty());
        Body body = overlay.bodies().get(0);
        assertArrayEquals(new float[] {10, 100, 14, 100, 18, 100}, body.points(TWICE), 0);
        assertArrayEquals(new float[] {10, 100, 14, 100, 14, 100, 18, 100}, body.lines(TWICE), 0);
    }

    @Test
    public void pointsOtherThanCocosHaveNoLines() throws Exception {
        Overlay overlay = read("{'keypoints': [{'x': 1, 'y': 2}, {'x': 3, 'y': 4, 'score': 0.8}, 5]}", "");
        assertArrayEquals(new float[] {2, 4, 6, 8}, overlay.bodies().get(0).points(TWICE), 0);
        assertEquals(0, overlay.bodies().get(0).lines(TWICE).length);
    }

    @Test
    public void aMaskCoversItsPartAndTheBackgroundStaysClear() throws Exception {
        Overlay overlay = read("{'label': 'Background', 'index': 0, 'share': 0.7}, {'label': 'horse', 'index': 13,"
                + " 'share': 0.3}", ", 'mask': 'aGk=', 'mask_box': {'x': 10, 'y': 0, 'width': 80, 'height': 100}");
        assertEquals("aGk=", overlay.mask());
        assertArrayEquals(new int[] {0}, overlay.background());
        assertArrayEquals(new float[] {20, 0, 180, 200}, TWICE.frame(overlay.maskArea()), 0);
        int[] pixels = {Colours.of(0), Colours.of(13)};
        Colours.veil(pixels, overlay.background());
        assertArrayEquals(new int[] {0, 140 << 24 | Colours.of(13) & 0xffffff}, pixels);
    }

    @Test
    public void classesAloneDrawNothing() throws Exception {
        assertTrue(read("{'label': '7', 'index': 7, 'score': 0.9}", "").isEmpty());
        assertTrue(Overlay.of(new JSONObject()).isEmpty());
    }

    @Test
    public void invalidDrawingsAreSkipped() throws Exception {
        assertTrue(read("7, null, {'box': 5}, {'box': {}}, {'box': {'x': 'a', 'y': 1, 'width': 2, 'height': 3}},"
                + "{'box': {'x': 0, 'y': 0, 'width': -1, 'height': 2}}, {'keypoints': 'no'}", "").isEmpty());
        Overlay overlay = read("", ", 'mask': 'aGk=', 'mask_box': {'x': 0}");
        assertTrue(overlay.isEmpty());
        assertNull(overlay.maskArea());
        assertEquals(0, read("{'keypoints': [{'x': 'NaN', 'y': 1}]}", "").bodies().get(0).points(TWICE).length);
    }

    @Test
    public void answersAreBounded() throws Exception {
        StringBuilder many = new StringBuilder();
        for (int i = 0; i < 1000; i++) {
            many.append(i == 0 ? "" : ",").append("{'label': '").append(new String(new char[99]).replace('\0', 'x'))
                    .append("', 'box': {'x': 0, 'y': 0, 'width': 1, 'height': 1}}");
        }
        Overlay overlay = read(many.toString(), "");
        assertEquals(100, overlay.boxes().size());
        assertEquals(61, overlay.boxes().get(0).name.length());
        String mask = new String(new char[(8 << 20) + 1]).replace('\0', 'A');
        String place = ", 'mask_box': {'x': 0, 'y': 0, 'width': 1, 'height': 1}";
        assertTrue(read("", ", 'mask': '" + mask + "'" + place).isEmpty());
    }

    @Test
    public void coloursAreThoseOfTheServersDrawings() {
        String[] expected = System.getProperty("pocketserve.colours").split(",");
        assertTrue(expected.length >= 100);
        for (int i = 0; i < expected.length; i++) {
            assertEquals("class " + i, expected[i], String.format("%06x", Colours.of(i) & 0xffffff));
        }
    }

    @Test
    public void namesCanBeReadOnEveryColour() {
        assertEquals(0xff000000, Colours.ink(0xffffffff));
        assertEquals(0xffffffff, Colours.ink(0xff000000));
        assertEquals(Colours.of(0), Colours.of(-1));
    }
}
