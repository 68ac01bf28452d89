package dev.pocketserve.bridge;

/** Receives the body of a successful answer while it arrives, on the thread that waits for it. */
interface PartReceiver {
    /**
     * Takes the next bytes.
     *
     * @param bytes a buffer that contains them
     * @param length their number, from the buffer's start
     * @throws PocketServeException if the answer can't be read or the receiver cancels
     */
    void part(byte[] bytes, int length) throws PocketServeException;
}
