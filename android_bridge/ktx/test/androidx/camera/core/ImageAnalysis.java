package androidx.camera.core;

import java.util.concurrent.Executor;

/** Has the shape of CameraX's class of this name. */
public final class ImageAnalysis {
    private Analyzer analyzer;

    /** Takes the frames. */
    public interface Analyzer {
        void analyze(ImageProxy image);
    }

    public void setAnalyzer(Executor executor, Analyzer taker) {
        analyzer = taker;
    }

    public void clearAnalyzer() {
        analyzer = null;
    }

    /** Plays the camera: hands a frame over. */
    public boolean give(ImageProxy image) {
        if (analyzer == null) {
            return false;
        }
        analyzer.analyze(image);
        return true;
    }
}
