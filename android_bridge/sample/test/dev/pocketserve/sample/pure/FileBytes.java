package dev.pocketserve.sample.pure;

import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;

/** Reads the files that tests are given. */
final class FileBytes {
    private FileBytes() {
    }

    static byte[] of(File file) throws IOException {
        byte[] content = new byte[(int) file.length()];
        try (DataInputStream stream = new DataInputStream(new FileInputStream(file))) {
            stream.readFully(content);
        }
        return content;
    }
}
