package dev.pocketserve.bridge.wire;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.util.Random;
import org.junit.Test;

/** Checks cases without vectors: bodies received in place, numbers beyond int, random bytes. */
public class FrameDecoderTest {
    private static FrameDecoder open(int maxBody) {
        FrameDecoder decoder = new FrameDecoder(FrameDecoder.Side.CLIENT, maxBody);
        decoder.skipHandshake();
        return decoder;
    }

    private static byte[] response(long id, byte[] body) {
        byte[] frame = new byte[24 + body.length];
        FrameEncoder.putHeader(frame, FrameType.RESPONSE, id, 200, 0, 0, 0, body.length);
        System.arraycopy(body, 0, frame, 24, body.length);
        return frame;
    }

    @Test
    public void bodiesAreReceivedInPlace() throws Exception {
        byte[] body = new byte[1000];
        new Random(1).nextBytes(body);
        byte[] frame = response(7, body);
        FrameDecoder decoder = open(1000);
        assertEquals(100, decoder.feed(frame, 0, 100));
        assertTrue(decoder.midFrame());
        assertEquals(924, decoder.bodyMissing());
        System.arraycopy(frame, 100, decoder.body(), decoder.bodyOffset(), 924);
        decoder.bodyReceived(924);
        assertArrayEquals(body, decoder.take().body());
        assertNull(decoder.take());
        assertFalse(decoder.midFrame());
        assertEquals(0, decoder.bodyMissing());
    }

    @Test
    public void memoryFollowsWhatHasCome() throws Exception {
        byte[] body = new byte[5_000_000];
        new Random(2).nextBytes(body);
        byte[] frame = response(1, body);
        FrameDecoder decoder = open(body.length);
        decoder.feed(frame, 0, 1000);
        assertTrue(decoder.body().length <= 1 << 20);
        int at = 1000;
        while (decoder.bodyMissing() > 0) {
            int count = decoder.bodyMissing();
            System.arraycopy(frame, at, decoder.body(), decoder.bodyOffset(), count);
            at += count;
            decoder.bodyReceived(count);
        }
        assertArrayEquals(body, decoder.take().body());
    }

    @Test
    public void aFrameIsHandedOutBeforeTheNextIsRead() throws Exception {
        byte[] frame = response(1, new byte[3]);
        byte[] two = new byte[frame.length * 2];
        System.arraycopy(frame, 0, two, 0, frame.length);
        System.arraycopy(frame, 0, two, frame.length, frame.length);
        FrameDecoder decoder = open(10);
        assertEquals(frame.length, decoder.feed(two, 0, two.length));
        assertEquals(0, decoder.feed(two, frame.length, frame.length));
        assertEquals(1, decoder.take().requestId());
        assertEquals(frame.length, decoder.feed(two, frame.length, frame.length));
    }

    @Test
    public void numbersAreUnsigned() throws Exception {
        byte[] frame = response(0xffffffffL, new byte[0]);
        FrameDecoder decoder = open(10);
        decoder.feed(frame, 0, frame.length);
        assertEquals(4_294_967_295L, decoder.take().requestId());
        byte[] huge = response(1, new byte[0]);
        FrameEncoder.putHeader(huge, FrameType.RESPONSE, 1, 200, 0, 0, 0, 0x80000000);
        try {
            open(Integer.MAX_VALUE).feed(huge, 0, huge.length);
            fail("taken");
        } catch (WireException fault) {
            assertEquals(ConnectionFault.FRAME_TOO_LARGE, fault.getFault());
        }
    }

    @Test
    public void anyBytesEndInFramesOrANamedFault() {
        Random random = new Random(42);
        for (int round = 0; round < 20_000; round++) {
            byte[] bytes = new byte[random.nextInt(120)];
            random.nextBytes(bytes);
            // Mostly valid bytes, because otherwise every round would end at the mark.
            if (bytes.length > 24 && random.nextInt(10) > 0) {
                int[] types = {0x11, 0x11, 0x30, 0x31, 0x40, 0x41, 0x99};
                FrameEncoder.putHeader(bytes, types[random.nextInt(types.length)], random.nextInt(2), 200, 0,
                        random.nextInt(20), random.nextInt(30), random.nextInt(90));
            }
            FrameDecoder decoder = open(64);
            int at = 0;
            try {
                while (at < bytes.length) {
                    int used = decoder.feed(bytes, at, bytes.length - at);
                    assertTrue(used > 0);
                    at += used;
                    decoder.take();
                }
            } catch (WireException error) {
                assertTrue(error.getFault().number() > 0);
            }
        }
    }
}
