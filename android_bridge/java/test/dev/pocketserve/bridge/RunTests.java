package dev.pocketserve.bridge;

import java.io.PrintWriter;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs test classes and writes an entry for each test: name, line break, trace of a failure, form feed. */
public final class RunTests {
    private RunTests() {
    }

    /** The first argument is the report file; the others are class names. */
    public static void main(String[] arguments) throws Exception {
        try (PrintWriter report = new PrintWriter(arguments[0], "UTF-8")) {
            JUnitCore core = new JUnitCore();
            core.addListener(new Writer(report));
            for (int i = 1; i < arguments.length; i++) {
                core.run(Class.forName(arguments[i]));
            }
        }
        // Threads of a failed test must not keep the process alive.
        System.exit(0);
    }

    private static final class Writer extends RunListener {
        private final PrintWriter report;
        private String trace = "";

        Writer(PrintWriter report) {
            this.report = report;
        }

        @Override
        public void testStarted(Description test) {
            trace = "";
        }

        @Override
        public void testFailure(Failure failure) {
            trace = failure.getTrace();
            if (!failure.getDescription().isTest()) {
                testFinished(failure.getDescription());
            }
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            testFailure(failure);
        }

        @Override
        public void testIgnored(Description test) {
            trace = "ignored";
            testFinished(test);
        }

        @Override
        public void testFinished(Description test) {
            report.print(test.getClassName() + "." + test.getMethodName() + "\n" + trace + "\f");
            report.flush();
        }
    }
}
