import android.graphics.Bitmap;
import android.media.Image;
import androidx.camera.core.ImageInfo;
import androidx.camera.core.ImageProxy;
import java.awt.image.BufferedImage;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import javax.imageio.ImageIO;

/** Makes what cameras and galleries give, of a picture in shades of grey. */
public final class Pictures {
    private static final int PADDING = 5;

    private Pictures() {
    }

    /** Reads a picture and turns it to the left, so that turning it by 90 degrees to the right sets it upright. */
    private static int[][] turned(String file) throws IOException {
        BufferedImage picture = ImageIO.read(new File(file));
        int[][] rows = new int[picture.getWidth()][picture.getHeight()];
        for (int y = 0; y < picture.getHeight(); y++) {
            for (int x = 0; x < picture.getWidth(); x++) {
                rows[picture.getWidth() - 1 - x][y] = picture.getRGB(x, y);
            }
        }
        return rows;
    }

    /** Returns a bitmap, turned to the left. */
    public static Bitmap bitmap(String file, String config) throws IOException {
        int[][] rows = turned(file);
        int width = rows[0].length;
        int[] all = new int[rows.length * width];
        for (int y = 0; y < rows.length; y++) {
            System.arraycopy(rows[y], 0, all, y * width, width);
        }
        return new Bitmap(all, width, Bitmap.Config.valueOf(config));
    }

    /** Returns the Y plane; its rows have gaps. */
    private static ByteBuffer brightness(int[][] rows) {
        ByteBuffer plane = ByteBuffer.allocateDirect((rows[0].length + PADDING) * rows.length);
        for (int y = 0; y < rows.length; y++) {
            for (int x = 0; x < rows[0].length; x++) {
                plane.put(y * (rows[0].length + PADDING) + x, (byte) rows[y][x]);
            }
        }
        return plane;
    }

    private static ByteBuffer colour(int width, int height) {
        ByteBuffer plane = ByteBuffer.allocateDirect(width / 2 * 2 * (height / 2));
        while (plane.hasRemaining()) {
            plane.put((byte) 128);
        }
        plane.rewind();
        return plane;
    }

    /** Returns what an ImageReader gives, turned to the left. */
    public static Image image(String file) throws IOException {
        final ImageProxy proxy = proxy(file, 90);
        final ImageProxy.PlaneProxy[] planes = proxy.getPlanes();
        return new Image() {
            @Override
            public int getWidth() {
                return proxy.getWidth();
            }

            @Override
            public int getHeight() {
                return proxy.getHeight();
            }

            @Override
            public Plane[] getPlanes() {
                return new Plane[] {plane(planes[0]), plane(planes[1]), plane(planes[2])};
            }

            @Override
            public void close() {
                proxy.close();
            }
        };
    }

    private static Image.Plane plane(final ImageProxy.PlaneProxy from) {
        return new Image.Plane() {
            @Override
            public int getRowStride() {
                return from.getRowStride();
            }

            @Override
            public int getPixelStride() {
                return from.getPixelStride();
            }

            @Override
            public ByteBuffer getBuffer() {
                return from.getBuffer();
            }
        };
    }

    private static ImageProxy.PlaneProxy plane(final ByteBuffer bytes, final int rowStride, final int pixelStride) {
        return new ImageProxy.PlaneProxy() {
            @Override
            public int getRowStride() {
                return rowStride;
            }

            @Override
            public int getPixelStride() {
                return pixelStride;
            }

            @Override
            public ByteBuffer getBuffer() {
                return bytes;
            }
        };
    }

    /** Returns what CameraX's ImageAnalysis gives, turned to the left; its planes are gone once it is closed. */
    public static ImageProxy proxy(String file, final int rotation) throws IOException {
        final int[][] rows = turned(file);
        final int width = rows[0].length;
        final ByteBuffer colour = colour(width, rows.length);
        final ImageProxy.PlaneProxy[] planes = {
            plane(brightness(rows), width + PADDING, 1), plane(colour, width, 2), plane(colour, width, 2)
        };
        return new ImageProxy() {
            private boolean closed;

            @Override
            public void close() {
                closed = true;
            }

            @Override
            public int getWidth() {
                return width;
            }

            @Override
            public int getHeight() {
                return rows.length;
            }

            @Override
            public PlaneProxy[] getPlanes() {
                if (closed) {
                    throw new IllegalStateException("this image was closed");
                }
                return planes;
            }

            @Override
            public ImageInfo getImageInfo() {
                return new ImageInfo() {
                    @Override
                    public int getRotationDegrees() {
                        return rotation;
                    }
                };
            }
        };
    }
}
