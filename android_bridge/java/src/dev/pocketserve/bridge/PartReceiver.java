package dev.pocketserve.bridge;

/** Takes the body of a successful answer while it comes, on the thread that waits for the answer. */
interface PartReceiver {
    /**
     * Takes the next bytes.
     *
     * @param bytes holds them
     * @param length how many there are, from the start
     * @throws PocketServeException the answer can't be read, or the receiver gives up
     */
    void part(byte[] bytes, int length) throws PocketServeException;
}
