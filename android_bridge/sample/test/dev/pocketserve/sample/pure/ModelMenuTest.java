package dev.pocketserve.sample.pure;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import java.util.Arrays;
import java.util.Collections;
import org.junit.Test;

/** Checks the models and versions in the menu. */
public class ModelMenuTest {
    private static ModelMenu.Row row(String model, String version, boolean ready, boolean standard, String task) {
        return new ModelMenu.Row(model, version, ready, standard, task);
    }

    private final ModelMenu menu = new ModelMenu(Arrays.asList(
            row("petals", "tflite", true, true, "tabular-classification"),
            row("numbers", "onnx", true, false, "object-detection"),
            row("numbers", "tflite", true, true, "object-detection"),
            row("numbers", "torch", false, false, "object-detection"),
            row("damaged", "tflite", false, true, "image-classification"),
            row("digits", "tflite", true, true, ""),
            row("lines", "onnx", true, true, "tensors"),
            row("own", "", true, true, "counting-cells")));

    @Test
    public void readyModelsForPicturesAreListed() {
        assertEquals(Arrays.asList("digits", "numbers", "own"), menu.models());
    }

    @Test
    public void theDefaultVersionIsFirstAndUnavailableOnesAreHidden() {
        assertEquals(Arrays.asList("tflite", "onnx"), menu.versions("numbers"));
        assertEquals(Collections.singletonList(""), menu.versions("own"));
        assertEquals(Collections.emptyList(), menu.versions("petals"));
    }

    @Test
    public void thePreviousChoiceStaysIfPossible() {
        assertEquals("numbers", menu.modelLike("numbers"));
        assertEquals("digits", menu.modelLike("gone"));
        assertEquals("digits", menu.modelLike(null));
        assertEquals("onnx", menu.versionLike("numbers", "onnx"));
        assertNull(menu.versionLike("numbers", "torch"));
        assertNull(menu.versionLike("numbers", null));
        assertNull(new ModelMenu(Collections.<ModelMenu.Row>emptyList()).modelLike("numbers"));
    }
}
