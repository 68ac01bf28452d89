package androidx.camera.core;

/** Has the shape of CameraX's interface of this name. */
public interface ImageInfo {
    int getRotationDegrees();
}
