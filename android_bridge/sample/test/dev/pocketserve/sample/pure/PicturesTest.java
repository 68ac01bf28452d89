package dev.pocketserve.sample.pure;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertTrue;

import org.junit.Test;

/** Checks sizes, rotation and positions of pictures. */
public class PicturesTest {
    @Test
    public void picturesAreTurnedUpright() {
        assertEquals(90, Geometry.upright(90, 0, false));
        assertEquals(0, Geometry.upright(90, 90, false));
        assertEquals(180, Geometry.upright(90, 270, false));
        assertEquals(270, Geometry.upright(270, 0, true));
        assertEquals(0, Geometry.upright(270, 90, true));
    }

    @Test
    public void boxesAreMappedToTheView() {
        Geometry fitted = Geometry.fitted(200, 100, 400, 400);
        assertEquals(2, fitted.scale, 0);
        assertEquals(0, fitted.left, 0);
        assertEquals(100, fitted.top, 0);
        Geometry filling = Geometry.filling(200, 100, 400, 400);
        assertEquals(4, filling.scale, 0);
        assertEquals(-200, filling.left, 0);
        assertEquals(0, filling.top, 0);
    }

    @Test
    public void orientationGoesBehindTheFirstMarker() {
        byte[] jpeg = {(byte) 0xff, (byte) 0xd8, (byte) 0xff, (byte) 0xd9};
        byte[] marked = ExifOrientation.mark(jpeg, 90);
        assertNotNull(marked);
        assertEquals(jpeg.length + 36, marked.length);
        assertEquals((byte) 0xe1, marked[3]);
        assertEquals(34, marked[5]);
        assertEquals(6, marked[31]);
        assertEquals((byte) 0xd9, marked[marked.length - 1]);
    }

    @Test
    public void aMirroredPreviewHasItsBoxesMirrored() {
        Geometry plain = Geometry.fitted(200, 100, 400, 400);
        assertEquals(20, plain.x(10), 0);
        assertEquals(380, plain.mirrored().x(10), 0);
        assertEquals(plain.y(10), plain.mirrored().y(10), 0);
        assertEquals(20, plain.mirrored().mirrored().x(10), 0);
    }

    @Test
    public void aNameIsAboveItsFrameAndInsideTheView() {
        assertArrayEquals(new float[] {50, 100}, Geometry.nameAt(new float[] {50, 100, 90, 200}, 60, 20, 400), 0);
        assertArrayEquals(new float[] {340, 30}, Geometry.nameAt(new float[] {390, 10, 400, 50}, 60, 20, 400), 0);
        assertArrayEquals(new float[] {0, 20}, Geometry.nameAt(new float[] {-30, -40, 10, 50}, 600, 20, 400), 0);
    }

    @Test
    public void theLargestSizeOfAShapeIsChosen() {
        int[][] sizes = {{320, 240}, {1920, 1080}, {640, 480}, {640, 360}, {1280, 960}};
        assertArrayEquals(new int[] {1280, 960}, PictureSizes.largest(sizes, 1280, null));
        assertArrayEquals(new int[] {640, 360}, PictureSizes.largest(sizes, 1280, new int[] {16, 9}));
        assertArrayEquals("no such shape: any", new int[] {1280, 960},
                PictureSizes.largest(sizes, 1280, new int[] {1, 1}));
        assertArrayEquals("all too large: the smallest", new int[] {320, 240}, PictureSizes.largest(sizes, 100, null));
    }

    @Test(expected = IllegalArgumentException.class)
    public void aCameraWithoutSizesIsRejected() {
        PictureSizes.largest(new int[0][], 100, null);
    }

    @Test
    public void onlyPicturesOfTheSenderAreAccepted() {
        assertTrue(SharedPicture.accepted("image/jpeg", "content"));
        assertFalse("opened with this app's own rights", SharedPicture.accepted("image/jpeg", "file"));
        assertFalse(SharedPicture.accepted("text/plain", "content"));
        assertFalse(SharedPicture.accepted(null, "content"));
        assertFalse(SharedPicture.accepted("image/png", null));
    }
}
