package dev.pocketserve.sample.pure;

/** Colours of classes, the same as in the server's drawings. Consecutive ones differ strongly. */
public final class Colours {
    private static final double FIRST_HUE = 0.58;
    private static final double HUE_STEP = 0.618034;
    private static final double[] SATURATIONS = {0.72, 0.88, 0.58};
    private static final double[] VALUES = {0.98, 0.90, 1.0};
    private static final int OPAQUE = 0xff000000;
    private static final int RGB = 0x00ffffff;
    /** The opacity of a mask, from 0 to 255. */
    private static final int MASK_ALPHA = 140;

    private Colours() {
    }

    /** Returns the opaque colour of a class, 0xAARRGGBB. Negative numbers count as 0. */
    public static int of(int index) {
        int number = Math.max(0, index);
        double hue = (FIRST_HUE + number * HUE_STEP) % 1.0;
        return OPAQUE | rgb(hue, SATURATIONS[number % 3], VALUES[number / 3 % 3]);
    }

    private static int rgb(double hue, double saturation, double value) {
        int sector = (int) (hue * 6);
        double part = hue * 6 - sector;
        double low = value * (1 - saturation);
        double falling = value * (1 - saturation * part);
        double rising = value * (1 - saturation * (1 - part));
        switch (sector % 6) {
            case 0:
                return rgb8(value, rising, low);
            case 1:
                return rgb8(falling, value, low);
            case 2:
                return rgb8(low, value, rising);
            case 3:
                return rgb8(low, falling, value);
            case 4:
                return rgb8(rising, low, value);
            default:
                return rgb8(value, low, falling);
        }
    }

    private static int rgb8(double red, double green, double blue) {
        return (int) Math.rint(red * 255) << 16 | (int) Math.rint(green * 255) << 8 | (int) Math.rint(blue * 255);
    }

    /** Returns black or white, whichever is readable on a colour. */
    public static int ink(int colour) {
        double light = 0.299 * (colour >> 16 & 255) + 0.587 * (colour >> 8 & 255) + 0.114 * (colour & 255);
        return light > 140 ? OPAQUE : OPAQUE | RGB;
    }

    /**
     * Makes a mask half transparent, and its background clear.
     *
     * @param pixels the decoded mask in the classes' colours, 0xAARRGGBB each; changed in place
     * @param clear numbers of the classes that are not drawn
     */
    public static void veil(int[] pixels, int[] clear) {
        for (int i = 0; i < pixels.length; i++) {
            boolean hidden = false;
            for (int index : clear) {
                hidden |= (pixels[i] & RGB) == (of(index) & RGB);
            }
            pixels[i] = hidden ? 0 : MASK_ALPHA << 24 | pixels[i] & RGB;
        }
    }
}
