package dev.pocketserve.sample;

import android.graphics.ImageFormat;
import android.graphics.SurfaceTexture;
import android.hardware.camera2.params.StreamConfigurationMap;
import android.media.ImageReader;
import android.util.Size;
import android.view.Surface;
import dev.pocketserve.sample.pure.PictureSizes;
import java.util.Arrays;
import java.util.List;

/** The camera's outputs: preview, frames and pictures. To release them, run this on the camera's thread. */
final class CameraOutputs implements Runnable {
    private static final int PREVIEW_LONG_SIDE = 1280;
    private static final int FRAME_LONG_SIDE = 640;
    private static final int PICTURE_LONG_SIDE = 2048;

    final ImageReader pictures;
    final ImageReader frames;
    final Surface preview;
    final Size previewSize;

    /**
     * Creates the outputs in sizes that the camera supports.
     *
     * @throws IllegalArgumentException if a kind of output has no size
     */
    CameraOutputs(StreamConfigurationMap sizes, SurfaceTexture texture) {
        Size picture = largest(sizes.getOutputSizes(ImageFormat.JPEG), PICTURE_LONG_SIDE, null);
        Size frame = largest(sizes.getOutputSizes(ImageFormat.YUV_420_888), FRAME_LONG_SIDE, null);
        // In the frame's aspect ratio, so that boxes fit the preview.
        previewSize = largest(sizes.getOutputSizes(SurfaceTexture.class), PREVIEW_LONG_SIDE, frame);
        pictures = ImageReader.newInstance(picture.getWidth(), picture.getHeight(), ImageFormat.JPEG, 2);
        frames = ImageReader.newInstance(frame.getWidth(), frame.getHeight(), ImageFormat.YUV_420_888, 2);
        texture.setDefaultBufferSize(previewSize.getWidth(), previewSize.getHeight());
        preview = new Surface(texture);
    }

    private static Size largest(Size[] sizes, int longSide, Size like) {
        int[][] pairs = new int[sizes == null ? 0 : sizes.length][];
        for (int i = 0; i < pairs.length; i++) {
            pairs[i] = pair(sizes[i]);
        }
        int[] best = PictureSizes.largest(pairs, longSide, like == null ? null : pair(like));
        return new Size(best[0], best[1]);
    }

    private static int[] pair(Size size) {
        return new int[] {size.getWidth(), size.getHeight()};
    }

    List<Surface> surfaces() {
        return Arrays.asList(preview, pictures.getSurface(), frames.getSurface());
    }

    @Override
    public void run() {
        pictures.close();
        frames.close();
        preview.release();
    }
}
