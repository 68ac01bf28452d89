package dev.pocketserve.sample;

import android.os.Build;
import android.view.View;
import android.view.WindowInsets;
import dev.pocketserve.sample.pure.Edges;

/**
 * Keeps the contents clear of status bar, navigation bar, cut-outs and keyboard. From Android 15 on, windows extend
 * behind them; before that, these distances are 0.
 */
final class SystemBars {
    private SystemBars() {
    }

    /**
     * Adds padding to both views whenever the distances change.
     *
     * @param bar at the top; its colour reaches behind the status bar
     * @param below everything else
     */
    static void keepClear(final View bar, final View below) {
        final Edges barOwn = paddingOf(bar);
        final Edges belowOwn = paddingOf(below);
        View root = (View) bar.getParent();
        root.setOnApplyWindowInsetsListener(new View.OnApplyWindowInsetsListener() {
            @Override
            public WindowInsets onApplyWindowInsets(View view, WindowInsets insets) {
                Edges edges = edges(insets);
                pad(bar, barOwn.plus(edges.ofBar()));
                pad(below, belowOwn.plus(edges.belowBar()));
                return insets.consumeSystemWindowInsets();
            }
        });
    }

    private static Edges paddingOf(View view) {
        return new Edges(view.getPaddingLeft(), view.getPaddingTop(), view.getPaddingRight(), view.getPaddingBottom());
    }

    private static void pad(View view, Edges edges) {
        view.setPadding(edges.left, edges.top, edges.right, edges.bottom);
    }

    /** Uses reflection: the old methods ignore cut-outs, and the new ones are not in Android 6's classes. */
    private static Edges edges(WindowInsets insets) {
        if (Build.VERSION.SDK_INT >= 30) {
            try {
                Class<?> types = Class.forName("android.view.WindowInsets$Type");
                int wanted = 0;
                for (String type : new String[] {"systemBars", "displayCutout", "ime"}) {
                    wanted |= (Integer) types.getMethod(type).invoke(null);
                }
                Object all = WindowInsets.class.getMethod("getInsets", int.class).invoke(insets, wanted);
                return new Edges(field(all, "left"), field(all, "top"), field(all, "right"), field(all, "bottom"));
            } catch (ReflectiveOperationException notThere) {
                // The old methods below ignore cut-outs, but exist in every release.
            }
        }
        return new Edges(insets.getSystemWindowInsetLeft(), insets.getSystemWindowInsetTop(),
                insets.getSystemWindowInsetRight(), insets.getSystemWindowInsetBottom());
    }

    private static int field(Object insets, String name) throws ReflectiveOperationException {
        return insets.getClass().getField(name).getInt(insets);
    }
}
